"""The gRPC paths of every method that CometMQ serves or calls.

No stubs are generated: a door maps a path to a handler, a client calls a path. A path is
`/<full service name>/<method>`; `tests/proto/test_paths.py` compares them with the descriptors.
"""

from typing import Final

MESSAGING: Final = "/apache.rocketmq.v2.MessagingService/"

QUERY_ROUTE: Final = MESSAGING + "QueryRoute"
HEARTBEAT: Final = MESSAGING + "Heartbeat"
SEND_MESSAGE: Final = MESSAGING + "SendMessage"
QUERY_ASSIGNMENT: Final = MESSAGING + "QueryAssignment"
RECEIVE_MESSAGE: Final = MESSAGING + "ReceiveMessage"
ACK_MESSAGE: Final = MESSAGING + "AckMessage"
FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE: Final = MESSAGING + "ForwardMessageToDeadLetterQueue"
PULL_MESSAGE: Final = MESSAGING + "PullMessage"
UPDATE_OFFSET: Final = MESSAGING + "UpdateOffset"
GET_OFFSET: Final = MESSAGING + "GetOffset"
QUERY_OFFSET: Final = MESSAGING + "QueryOffset"
END_TRANSACTION: Final = MESSAGING + "EndTransaction"
TELEMETRY: Final = MESSAGING + "Telemetry"
NOTIFY_CLIENT_TERMINATION: Final = MESSAGING + "NotifyClientTermination"
CHANGE_INVISIBLE_DURATION: Final = MESSAGING + "ChangeInvisibleDuration"
RECALL_MESSAGE: Final = MESSAGING + "RecallMessage"
SYNC_LITE_SUBSCRIPTION: Final = MESSAGING + "SyncLiteSubscription"

# The control plane of the client protocol; no official client calls it.
ROCKETMQ_ADMIN: Final = "/apache.rocketmq.v2.Admin/"

CHANGE_LOG_LEVEL: Final = ROCKETMQ_ADMIN + "ChangeLogLevel"
DESCRIBE_TOPIC_STATUS: Final = ROCKETMQ_ADMIN + "DescribeTopicStatus"
LIST_SUBSCRIPTION: Final = ROCKETMQ_ADMIN + "ListSubscription"
DESCRIBE_SUBSCRIPTION: Final = ROCKETMQ_ADMIN + "DescribeSubscription"
DELETE_SUBSCRIPTION: Final = ROCKETMQ_ADMIN + "DeleteSubscription"
DESCRIBE_GROUP_ACCUMULATION: Final = ROCKETMQ_ADMIN + "DescribeGroupAccumulation"
QUERY_TIME_SPAN: Final = ROCKETMQ_ADMIN + "QueryTimeSpan"
LIST_CONSUMER_CONNECTION: Final = ROCKETMQ_ADMIN + "ListConsumerConnection"
RESET_GROUP_OFFSET: Final = ROCKETMQ_ADMIN + "ResetGroupOffset"
QUERY_MESSAGE: Final = ROCKETMQ_ADMIN + "QueryMessage"
PRINT_THREAD_STACK_TRACE: Final = ROCKETMQ_ADMIN + "PrintThreadStackTrace"
VERIFY_MESSAGE: Final = ROCKETMQ_ADMIN + "VerifyMessage"
ADMIN_SEND_MESSAGE: Final = ROCKETMQ_ADMIN + "AdminSendMessage"
GET_CONSUMER_RUNNING_INFO: Final = ROCKETMQ_ADMIN + "GetConsumerRunningInfo"
GET_TOPIC_ROUTE: Final = ROCKETMQ_ADMIN + "GetTopicRoute"
GET_PROXY_RUNTIME_STATS: Final = ROCKETMQ_ADMIN + "GetProxyRuntimeStats"

NAMESERVER: Final = "/cometmq.v1.NameServer/"

REGISTER: Final = NAMESERVER + "Register"
UNREGISTER: Final = NAMESERVER + "Unregister"
GET_CLUSTER: Final = NAMESERVER + "GetCluster"

HA: Final = "/cometmq.v1.HaReplication/"

HA_REPLICATE: Final = HA + "Replicate"

CONTROLLER: Final = "/cometmq.v1.GroupController/"

CONTROLLER_SESSION: Final = CONTROLLER + "Session"
ALTER_ISR: Final = CONTROLLER + "AlterIsr"
REPORT_CUT: Final = CONTROLLER + "ReportCut"
PROCESS_EXITED: Final = CONTROLLER + "ProcessExited"
SWITCHOVER: Final = CONTROLLER + "Switchover"
FORCE_ELECT: Final = CONTROLLER + "ForceElect"
SET_DRAIN: Final = CONTROLLER + "SetDrain"
SET_POLICY: Final = CONTROLLER + "SetPolicy"
GET_GROUPS: Final = CONTROLLER + "GetGroups"

REPLICA: Final = "/cometmq.v1.ReplicaControl/"

REPLICA_STATUS: Final = REPLICA + "Status"
FENCE: Final = REPLICA + "Fence"
STEP_DOWN: Final = REPLICA + "StepDown"
PROMOTE: Final = REPLICA + "Promote"
FOLLOW: Final = REPLICA + "Follow"
RESEED: Final = REPLICA + "Reseed"
CUT_TAIL: Final = REPLICA + "CutTail"
REPLAY_TAIL: Final = REPLICA + "ReplayTail"
GET_DIGESTS: Final = REPLICA + "GetDigests"
READ_RANGE: Final = REPLICA + "ReadRange"
READ_PLACES: Final = REPLICA + "ReadPlaces"

META_CELL: Final = "/cometmq.v1.MetaCell/"

CELL_PREPARE: Final = META_CELL + "Prepare"
CELL_ACCEPT: Final = META_CELL + "Accept"
CELL_READ: Final = META_CELL + "Read"

ADMIN: Final = "/cometmq.v1.Admin/"

CREATE_TOPIC: Final = ADMIN + "CreateTopic"
DELETE_TOPIC: Final = ADMIN + "DeleteTopic"
LIST_TOPICS: Final = ADMIN + "ListTopics"
DESCRIBE_TOPIC: Final = ADMIN + "DescribeTopic"
CREATE_GROUP: Final = ADMIN + "CreateGroup"
DELETE_GROUP: Final = ADMIN + "DeleteGroup"
LIST_GROUPS: Final = ADMIN + "ListGroups"
DESCRIBE_GROUP: Final = ADMIN + "DescribeGroup"
RESET_OFFSETS: Final = ADMIN + "ResetOffsets"
DESCRIBE_CLUSTER: Final = ADMIN + "DescribeCluster"
GET_CONFIG: Final = ADMIN + "GetConfig"
QUERY_MESSAGES: Final = ADMIN + "QueryMessages"
SET_ARCHIVE_WATERMARK: Final = ADMIN + "SetArchiveWatermark"
GET_ARCHIVE_WATERMARK: Final = ADMIN + "GetArchiveWatermark"
READ_LOG: Final = ADMIN + "ReadLog"
LOCATE_LOG: Final = ADMIN + "LocateLog"

TEST: Final = "/cometmq.v1.Test/"

GET_CLOCK: Final = TEST + "GetClock"
SET_CLOCK: Final = TEST + "SetClock"
ADVANCE_CLOCK: Final = TEST + "AdvanceClock"
PUT_FAULT: Final = TEST + "PutFault"
LIST_FAULTS: Final = TEST + "ListFaults"
CLEAR_FAULTS: Final = TEST + "ClearFaults"
GET_COUNTERS: Final = TEST + "GetCounters"
SET_ROUTES: Final = TEST + "SetRoutes"
