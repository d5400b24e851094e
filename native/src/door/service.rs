//! One connection and its calls: HTTP/2 requests to events, orders of Python to answers.
//!
//! Handles paths, headers and bytes, no messages and no services. Invalid input ends in a status, a
//! closed stream or a closed connection of that client, and is counted.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_TYPE};
use http::{request, Method, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{watch, Notify, Semaphore};
use tokio::time::{interval, sleep, sleep_until, timeout, timeout_at, Instant, Sleep};

use crate::door::authority::{Tolerant, TURN_CALLS};
use crate::door::body::{Ending, GrpcBody};
use crate::door::budget::{Held, Pool, Share};
use crate::door::call::{Out, Shared};
use crate::door::frame::{self, Deframer, Encoding, Packed};
use crate::door::inbox::{call_id, lane_of, Event, Inbox, Open};
use crate::door::metadata::{Peer, Remembered};
use crate::door::newcomers::{Newcomer, Newcomers, Place, Slices};
use crate::door::options::{Counters, Options};
use crate::door::status::{
    Status, DEADLINE_EXCEEDED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNKNOWN,
};
use crate::door::turns::{Turn, Turns};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Flow-control windows: of a stream, and of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Data of an answer that a connection buffers before the client has read earlier data.
const SEND_BUFFER: usize = 256 << 10;

/// Memory of the streams of unfinished requests, and of those of unread answers: of one connection,
/// and of all. Requests that wait for Python have a limit of their own.
const STREAMS_BYTES: usize = 24 << 20;
pub const ALL_STREAMS_BYTES: usize = 40 << 20;

/// Share of the queue to Python that one connection may fill.
const SHARE: usize = 4;
/// Calls that wait for Python, of a connection that has had an answer, beyond those of all.
const FEW_CALLS: usize = 16;
/// Shortest interval between checks of a connection.
const SHORTEST_TICK: Duration = Duration::from_millis(10);
/// A connection with too many unread answers has this time, twice, to read `READ_MIN` bytes.
const UNREAD_PATIENCE: Duration = Duration::from_millis(250);
/// Bytes that a client with unread answers must read in `Options::stalled`.
const READ_MIN: u64 = 16 << 10;
/// While unread answers exceed the budget of the process, a connection is closed when it has at
/// least `CROWDED_BYTES` of them and has read less than `READ_MIN` bytes for `CROWDED_STALL`.
const CROWDED_STALL: Duration = Duration::from_secs(1);
const CROWDED_BYTES: usize = 64 << 10;
/// Messages decompressed at once: each may hold the largest message, and they share the cores.
pub const INFLATING_MAX: usize = 2;
/// Number of empty data frames in a row that a client may send.
const EMPTY_PIECES_MAX: usize = 1_000;

/// A method of the table.
#[derive(Clone, Copy)]
pub struct Route {
    /// Index in Python's list.
    pub index: usize,
    /// Requests are a stream, too.
    pub bidirectional: bool,
    /// Largest message of a client.
    pub message_bytes: usize,
}

/// State shared by all connections.
pub struct Door {
    /// Methods by path.
    pub routes: HashMap<String, Route>,
    /// Headers to pick.
    pub names: Vec<HeaderName>,
    /// Limits.
    pub options: Options,
    /// Counters.
    pub counters: Counters,
    /// Bytes of unfinished requests.
    pub unfinished: Arc<Pool>,
    /// Bytes of unread answers.
    pub unread: Arc<Pool>,
    /// Streams of unfinished requests, and of unread answers.
    pub requests: Arc<Pool>,
    /// Streams of unread answers.
    pub answers: Arc<Pool>,
    /// Connections by address.
    pub newcomers: Arc<Newcomers>,
    /// Time for newcomers.
    pub slices: Slices,
    /// Time for the others.
    pub turns: Turns,
    /// Messages that may be decompressed at once.
    pub inflating: Semaphore,
    /// Events for Python.
    pub inbox: Arc<Inbox<Event>>,
    /// Id of the next call.
    pub ids: AtomicU64,
}

fn share(pool: &Arc<Pool>, limit: usize) -> Arc<Share> {
    Arc::new(Share::new(Arc::clone(pool), limit))
}

/// How fast a connection reads: it must read `READ_MIN` bytes in the time that it has, or all.
struct Reading {
    written: Arc<AtomicU64>,
    mark: u64,
    since: Instant,
}

impl Reading {
    fn new(written: Arc<AtomicU64>) -> Self {
        Self {
            written,
            mark: 0,
            since: Instant::now(),
        }
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Bytes that it has read since then.
    fn since(&self, overdue: &Option<Overdue>) -> u64 {
        overdue
            .as_ref()
            .map_or(0, |each| self.written() - each.mark)
    }

    /// Return for how long it has read less than `READ_MIN` bytes of `unread` ones.
    fn stalled(&mut self, unread: usize) -> Duration {
        let written = self.written();
        if unread == 0 || written - self.mark >= READ_MIN {
            self.mark = written;
            self.since = Instant::now();
        }
        self.since.elapsed()
    }
}

/// A connection that has too many unread answers. It has its time twice: the thread may have made
/// all of them in one turn.
struct Overdue {
    mark: u64,
    at: Instant,
    again: bool,
}

impl Overdue {
    fn new(reading: &Reading) -> Self {
        Self {
            mark: reading.written(),
            at: Instant::now() + UNREAD_PATIENCE,
            again: false,
        }
    }
}

/// State shared by the calls of one connection.
pub struct Connection {
    calls: AtomicUsize,
    last: Mutex<Instant>,
    remembered: Remembered,
    unfinished: Arc<Share>,
    unread: Arc<Share>,
    requests: Arc<Share>,
    answers: Arc<Share>,
    /// An answer was sent; until then, what counts it as a newcomer.
    proven: AtomicBool,
    newcomer: Mutex<Option<Newcomer>>,
    wasted: AtomicUsize,
    wasted_max: usize,
    too_much: Notify,
    unseen: Arc<AtomicUsize>,
    /// Whose events take turns with those of other connections (`inbox.rs`).
    lane: u16,
}

impl Connection {
    /// Count a call that was reset before it was processed. Many in a row are an attack (rapid
    /// reset) that would fill the queue shared by all clients.
    pub fn wasted(&self) {
        if self.wasted.fetch_add(1, Ordering::AcqRel) == self.wasted_max {
            self.too_much.notify_one();
        }
    }

    /// Record that an answer is sent.
    pub fn prove(&self) {
        if !self.proven.swap(true, Ordering::AcqRel) {
            let newcomer = self
                .newcomer
                .lock()
                .expect("a thread panicked while it held this lock")
                .take();
            drop(newcomer);
        }
    }

    fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Acquire)
    }

    fn idle(&self) -> Duration {
        if self.calls.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        self.last
            .lock()
            .expect("a thread panicked while it held this lock")
            .elapsed()
    }
}

/// Counts an open call of its connection.
pub struct Active(pub Arc<Connection>);

impl Active {
    fn new(connection: &Arc<Connection>) -> Self {
        connection.calls.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(connection))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::AcqRel) == 1 {
            *self
                .0
                .last
                .lock()
                .expect("a thread panicked while it held this lock") = Instant::now();
        }
    }
}

/// Serve HTTP/2 on a connection until it ends, or drain it once `stop` says so.
pub async fn serve<S>(
    door: Arc<Door>,
    stream: S,
    peer: Peer,
    (newcomer, place): (Newcomer, &Place),
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Arc::new(Connection {
        calls: AtomicUsize::new(0),
        last: Mutex::new(Instant::now()),
        remembered: Remembered::new(peer),
        unfinished: share(&door.unfinished, door.options.unfinished.0),
        unread: share(&door.unread, door.options.unread.0),
        requests: share(&door.requests, STREAMS_BYTES),
        answers: share(&door.answers, STREAMS_BYTES),
        proven: AtomicBool::new(false),
        newcomer: Mutex::new(Some(newcomer)),
        wasted: AtomicUsize::new(0),
        wasted_max: door.options.resets,
        too_much: Notify::new(),
        unseen: Arc::default(),
        lane: lane_of(door.ids.fetch_add(1, Ordering::Relaxed)),
    });
    door.inbox.join(connection.lane, place.group);
    let (idle, patience) = (door.options.idle, door.options.stalled);
    let service = {
        let (door, connection) = (Arc::clone(&door), Arc::clone(&connection));
        service_fn(move |request| {
            let (door, connection) = (Arc::clone(&door), Arc::clone(&connection));
            // The future has 2 KiB and the library moves it several times: a box is cheaper.
            let answer = Box::pin(answer(Arc::clone(&door), Arc::clone(&connection), request));
            async move {
                let answer = if connection.is_proven() {
                    answer.await
                } else {
                    door.slices.charge(answer).await
                };
                Ok::<_, Infallible>(answer)
            }
        })
    };
    let stream = Tolerant::new(stream);
    let (greeted, room) = (stream.greeted(), stream.room());
    let mut reading = Reading::new(stream.written());
    let mut http = pin!(builder(&door.options).serve_connection(TokioIo::new(stream), service));
    let (begun, handshake) = (Instant::now(), door.options.handshake);
    let mut tick = interval((idle.min(patience).min(handshake) / 4).max(SHORTEST_TICK));
    let mut closing = false;
    let mut overdue: Option<Overdue> = None;
    let waits = Arc::default();
    let mut turn = Turn::new(place.credit(), Arc::clone(&room));
    loop {
        let progress = poll_fn(|context| {
            if connection.is_proven() {
                door.turns.poll(&mut turn, http.as_mut(), context)
            } else {
                room.refill(TURN_CALLS);
                door.slices.poll(http.as_mut(), &waits, context)
            }
        });
        tokio::select! {
            ended = progress => {
                if ended.is_err() {
                    door.counters.connections_broken.up();
                }
                return;
            }
            _ = stop.wait_for(|stop| *stop), if !closing => {
                closing = true;
                http.as_mut().graceful_shutdown();
            }
            () = connection.too_much.notified() => {
                door.counters.connections_wasteful.up();
                return;
            }
            () = connection.unread.exceeded.notified() => {
                door.counters.connections_unread.up();
                return;
            }
            () = connection.answers.exceeded.notified(), if overdue.is_none() => {
                overdue = Some(Overdue::new(&reading));
            }
            () = sleep_until(overdue.as_ref().map_or(begun, |each| each.at)), if overdue.is_some() => {
                if !connection.answers.is_exceeded() || reading.since(&overdue) >= READ_MIN {
                    overdue = None;
                } else if let Some(each) = overdue.as_mut().filter(|each| !each.again) {
                    each.again = true;
                    each.at += UNREAD_PATIENCE;
                } else {
                    door.counters.connections_unread.up();
                    return;
                }
            }
            _ = tick.tick() => {
                connection.wasted.store(0, Ordering::Release);
                let unread = connection.unread.used() + connection.answers.used();
                let stalled = reading.stalled(unread);
                if stalled >= patience {
                    door.counters.connections_stalled.up();
                    return;
                }
                let crowded = door.unread.exceeds(1) || door.answers.exceeds(1);
                if crowded && unread >= CROWDED_BYTES && stalled >= CROWDED_STALL {
                    door.counters.connections_unread.up();
                    return;
                }
                if !greeted.load(Ordering::Acquire) && begun.elapsed() >= handshake {
                    door.counters.handshakes_failed.up();
                    return;
                }
                if closing && connection.idle() >= idle + handshake {
                    return; // not closed within the time after GOAWAY
                }
                let idle = if connection.is_proven() { idle } else { idle.min(handshake) };
                if !closing && connection.idle() >= idle {
                    closing = true;
                    http.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

fn builder(options: &Options) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(options.streams)
        .max_header_list_size(options.header_bytes)
        .max_pending_accept_reset_streams(options.resets)
        .max_local_error_reset_streams(options.resets)
        .max_frame_size(64 << 10)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(options.keepalive)
        .keep_alive_timeout(options.keepalive_timeout);
    builder
}

type Deadline = Option<Pin<Box<Sleep>>>;

async fn answer(
    door: Arc<Door>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<GrpcBody> {
    let (head, body) = request.into_parts();
    let (route, encoding, timeout_ns) = match door.admit(&head, &connection) {
        Ok(admitted) => admitted,
        Err(refusal) => {
            door.counters.unknown.up();
            return *refusal;
        }
    };
    let metadata = connection.remembered.of(&head.headers, &door.names);
    drop(head);
    let active = Active::new(&connection);
    let deadline: Deadline = timeout_ns.map(|ns| Box::pin(sleep(Duration::from_nanos(ns))));
    let deframer = Deframer::new(route.message_bytes, encoding);
    let id = call_id(door.ids.fetch_add(1, Ordering::Relaxed), connection.lane);
    let call = Arc::new(Shared::new(
        id,
        Arc::clone(&connection.unseen),
        Arc::clone(&connection.unread),
        Arc::clone(&connection.answers),
    ));
    let open = |request, held| Open {
        call: Arc::clone(&call),
        method: route.index,
        request,
        metadata,
        timeout_ns,
        held,
    };
    if route.bidirectional {
        door.begin(open(None, None));
        let unfinished = Arc::clone(&connection.unfinished);
        let ending = Ending::new(Arc::clone(&call), connection, Arc::clone(&door.inbox));
        let messages = Messages {
            body,
            deframer,
            unfinished,
        };
        tokio::spawn(read_all(Arc::clone(&door), messages, Arc::clone(&call)));
        return respond(GrpcBody::live(call, ending, deadline, active));
    }
    one_request(&door, body, deframer, deadline, active, &call, open).await
}

async fn one_request(
    door: &Door,
    mut body: Incoming,
    mut deframer: Deframer,
    mut deadline: Deadline,
    active: Active,
    call: &Arc<Shared>,
    open: impl FnOnce(Option<Bytes>, Option<Held>) -> Open,
) -> Response<GrpcBody> {
    let Some(stream) = Held::request(&active.0.requests, active.0.is_proven()) else {
        return status_only(&door.count(Failure::OverBudget), call.end());
    };
    let mut held = Held::new(&active.0.unfinished);
    let read = read_one(door, &mut body, &mut deframer, &mut held);
    let message = match in_time(door, &mut deadline, read).await {
        Some(Ok(message)) => message,
        Some(Err(failure)) => return status_only(&door.count(failure), call.end()),
        None => return status_only(&late(), call.end()),
    };
    drop(stream);
    // Further data is not read: the library then drops it instead of buffering it.
    drop(body);
    door.begin(open(Some(message), Some(held)));
    let mut ending = Ending::new(
        Arc::clone(call),
        Arc::clone(&active.0),
        Arc::clone(&door.inbox),
    );
    let first = poll_fn(|context| call.poll_out(context));
    match within(&mut deadline, pin!(first)).await {
        None => status_only(&late(), call.end()),
        Some(Out::End(status, held)) => {
            ending.delivered();
            status_only(&status, held)
        }
        Some(first) => {
            respond(GrpcBody::live(Arc::clone(call), ending, deadline, active).begin(first))
        }
    }
}

impl Door {
    fn begin(&self, open: Open) {
        self.counters.calls.up();
        let size = open.request.as_ref().map_or(0, Bytes::len);
        self.inbox.push_soon(Event::Open(open), size);
    }

    /// Decompress a message, on another thread and a few at a time: one may take half a second.
    async fn unpack(
        &self,
        packed: Packed,
        limit: usize,
        held: &mut Held,
    ) -> Result<Bytes, Failure> {
        if !packed.gzip {
            within_budget(held, packed.data.len())?;
            return Ok(packed.data);
        }
        // Neither closes before the calls do.
        let permit = self.inflating.acquire().await.map_err(|_| Failure::Gone)?;
        let work = tokio::task::spawn_blocking(move || packed.inflate(limit));
        let message = work.await.map_err(|_| Failure::Gone)?;
        drop(permit);
        let message = message.map_err(Failure::Broken)?;
        within_budget(held, message.len())?;
        Ok(message)
    }

    /// Count a request that is refused; return its status.
    fn count(&self, failure: Failure) -> Status {
        match failure {
            Failure::Broken(status) => {
                self.counters.requests_broken.up();
                status
            }
            Failure::Gone => {
                self.counters.requests_broken.up();
                cut_short()
            }
            Failure::OverBudget => {
                self.counters.requests_over_budget.up();
                let text = "unfinished requests hold too many bytes; try again later";
                Status::new(RESOURCE_EXHAUSTED, text)
            }
            Failure::Slow => {
                self.counters.requests_slow.up();
                let limit = self.options.request.as_millis();
                let text = format!("the request was not complete within {limit} ms");
                Status::new(DEADLINE_EXCEEDED, text)
            }
        }
    }

    /// Return the requested method, or the answer that refuses the request.
    #[allow(clippy::type_complexity)]
    fn admit(
        &self,
        head: &request::Parts,
        connection: &Connection,
    ) -> Result<(Route, Encoding, Option<u64>), Box<Response<GrpcBody>>> {
        let grpc = head.headers.get(CONTENT_TYPE).is_some_and(|value| {
            let value = value.as_bytes();
            value.starts_with(b"application/grpc") && !value.starts_with(b"application/grpc-web")
        });
        let answer = || Held::answer(&connection.answers);
        if head.method != Method::POST || !grpc {
            let mut response = Response::new(GrpcBody::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let status = Status::new(UNKNOWN, "this port answers gRPC calls only");
            status.write(response.headers_mut(), answer());
            return Err(Box::new(response));
        }
        let path = head.uri.path();
        let route = self.routes.get(path).copied().ok_or_else(|| {
            let status = Status::new(UNIMPLEMENTED, format!("unknown method {path}"));
            Box::new(status_only(&status, answer()))
        })?;
        let name = head.headers.get(GRPC_ENCODING).map(HeaderValue::as_bytes);
        let encoding =
            frame::encoding(name).map_err(|status| Box::new(status_only(&status, answer())))?;
        let timeout_ns =
            timeout_of(&head.headers).map_err(|status| Box::new(status_only(&status, answer())))?;
        let waiting = self.options.waiting;
        let unseen = connection.unseen.load(Ordering::Acquire);
        // Few calls of a known connection pass, so that some with many cannot keep it out.
        let few = connection.is_proven() && unseen < FEW_CALLS;
        let waiting_max = if few { 2 * waiting } else { waiting };
        if self.inbox.len() >= waiting_max || unseen >= (waiting / SHARE).max(1) {
            self.counters.calls_refused.up();
            let status = Status::new(
                RESOURCE_EXHAUSTED,
                "too many calls at once; try again later",
            );
            return Err(Box::new(status_only(&status, answer())));
        }
        Ok((route, encoding, timeout_ns))
    }
}

fn timeout_of(headers: &HeaderMap) -> Result<Option<u64>, Status> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else {
        return Ok(None);
    };
    match frame::timeout_ns(value.as_bytes()) {
        Some(ns) => Ok(Some(ns)),
        None => Err(Status::new(INVALID_ARGUMENT, "invalid grpc-timeout")),
    }
}

fn late() -> Status {
    Status::new(DEADLINE_EXCEEDED, "the deadline has passed")
}

fn respond(body: GrpcBody) -> Response<GrpcBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// A headers-only answer.
fn status_only(status: &Status, held: Held) -> Response<GrpcBody> {
    let mut response = respond(GrpcBody::empty());
    status.write(response.headers_mut(), held);
    if status.code == UNIMPLEMENTED {
        let known = HeaderValue::from_static("identity,gzip");
        response.headers_mut().insert(GRPC_ACCEPT_ENCODING, known);
    }
    response
}

/// Return the result, or `None` if the deadline has passed.
async fn within<T>(deadline: &mut Deadline, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        match deadline {
            Some(deadline) => deadline.as_mut().poll(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

/// Return the message of a call, within the time limit of a request; `None` after the deadline.
async fn in_time(
    door: &Door,
    deadline: &mut Deadline,
    read: impl Future<Output = Result<Bytes, Failure>>,
) -> Option<Result<Bytes, Failure>> {
    let mut read = pin!(read);
    // Most messages are complete by now: they need no timer.
    let now = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
    if let Poll::Ready(message) = now {
        return Some(message);
    }
    let read = within(deadline, timeout(door.options.request, read)).await;
    read.map(|read| read.unwrap_or(Err(Failure::Slow)))
}

/// Return the next piece of data; `None` at the end, or if the client left or misbehaves.
async fn data(body: &mut Incoming) -> Result<Option<Bytes>, hyper::Error> {
    for _ in 0..EMPTY_PIECES_MAX {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Err(error)) => return Err(error),
            Some(Ok(frame)) => {
                if let Some(data) = frame.into_data().ok().filter(|data| !data.is_empty()) {
                    return Ok(Some(data));
                }
            }
        }
    }
    Ok(None)
}

fn cut_short() -> Status {
    Status::new(
        INVALID_ARGUMENT,
        "the request ends before its message is complete",
    )
}

/// Why a request is refused before Python gets it.
enum Failure {
    /// It cannot be decoded.
    Broken(Status),
    /// It, and others, hold too many bytes.
    OverBudget,
    /// It was not complete in time.
    Slow,
    /// Its stream was reset, which the answering side reports.
    Gone,
}

fn within_budget(held: &mut Held, size: usize) -> Result<(), Failure> {
    if held.set(size) {
        Ok(())
    } else {
        Err(Failure::OverBudget)
    }
}

async fn read_one(
    door: &Door,
    body: &mut Incoming,
    deframer: &mut Deframer,
    held: &mut Held,
) -> Result<Bytes, Failure> {
    loop {
        if let Some(packed) = deframer.next_packed().map_err(Failure::Broken)? {
            return door.unpack(packed, deframer.limit(), held).await;
        }
        match data(body).await {
            Ok(Some(chunk)) => deframer.push(chunk),
            Ok(None) => return Err(Failure::Broken(cut_short())),
            Err(_) => return Err(Failure::Gone),
        }
        within_budget(held, deframer.len())?;
    }
}

/// The messages of a client's stream.
struct Messages {
    body: Incoming,
    deframer: Deframer,
    unfinished: Arc<Share>,
}

impl Messages {
    /// Return the next message; `None` at the end of the stream.
    async fn next(&mut self, door: &Door) -> Result<Option<(Bytes, Held)>, Failure> {
        let limit = door.options.request;
        // Between messages a stream holds no budget and has no time limit.
        let mut begun: Option<(Instant, Held)> = None;
        loop {
            if let Some(packed) = self.deframer.next_packed().map_err(Failure::Broken)? {
                let mut held = match begun {
                    Some((_, held)) => held,
                    None => Held::new(&self.unfinished),
                };
                let size = self.deframer.limit();
                let message = door.unpack(packed, size, &mut held).await?;
                return Ok(Some((message, held)));
            }
            if !self.deframer.is_empty() {
                let (_, held) =
                    begun.get_or_insert_with(|| (Instant::now(), Held::new(&self.unfinished)));
                within_budget(held, self.deframer.len())?;
            }
            let more = data(&mut self.body);
            let more = match &begun {
                None => more.await,
                Some((since, _)) => timeout_at(*since + limit, more)
                    .await
                    .map_err(|_| Failure::Slow)?,
            };
            match more {
                Ok(Some(chunk)) => self.deframer.push(chunk),
                Ok(None) if self.deframer.is_empty() => return Ok(None),
                Ok(None) => return Err(Failure::Broken(cut_short())),
                Err(_) => return Err(Failure::Gone),
            }
        }
    }
}

/// Pass the messages of a stream to Python, one at a time, as it processes them.
async fn read_all(door: Arc<Door>, messages: Messages, call: Arc<Shared>) {
    tokio::select! {
        () = pass_on(&door, messages, &call) => {}
        () = call.left.notified() => {}
    }
}

async fn pass_on(door: &Door, mut messages: Messages, call: &Shared) {
    loop {
        let Ok(permit) = call.inbound.acquire().await else {
            return;
        };
        permit.forget();
        match messages.next(door).await {
            Ok(Some((message, held))) => {
                door.inbox.push(Event::Message(call.id, message, held));
            }
            Ok(None) => return door.inbox.push(Event::HalfClosed(call.id)),
            Err(Failure::Gone) => return,
            Err(failure) => {
                let status = door.count(failure);
                let event = Event::Broken(call.id, status.code, status.message);
                return door.inbox.push(event);
            }
        }
    }
}
