"""Property names that are reserved for the broker. Constants only.

User and system properties share one string on disk, so code that accepts client properties or
forwards a stored message checks these names (docs/formats/grpc-api.md, sections 4.4 and 10.3).
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED_PROPERTIES = _names(
    """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
    MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG
    RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET
    1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID
    CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
    __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#
    _SYS_MSG_PRIORITY_ __LITE_TOPIC
    """
)
#: Names that the broker writes and the protocol does not reserve. Refused from clients, which could
#: otherwise forge the broker's properties.
INTERNAL_PROPERTIES = _names(
    """
    __SHARDINGKEY TRACE_CONTEXT CHECK_IMMUNITY_TIME_IN_SECONDS TRANSACTION_CHECK_TIMES
    __transactionId__ INNER_MULTI_DISPATCH INNER_NUM INNER_BASE REDIRECT ORIGIN_GROUP
    """
)
FORBIDDEN_PROPERTIES = RESERVED_PROPERTIES | INTERNAL_PROPERTIES
#: Internal names that consumers receive among the user properties, as from Apache's proxy
#: (docs/formats/client-wire.md, point 8).
DELIVERED_PROPERTIES = _names("__SHARDINGKEY __transactionId__")
