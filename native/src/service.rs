//! One connection and its calls: HTTP/2 requests to events, orders of Python to answers.
//!
//! Handles paths, headers and bytes, no messages and no services. Invalid input ends in a status, a
//! closed stream or a closed connection of that client, and is counted.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
use tokio::sync::{watch, Notify};
use tokio::time::{interval, sleep, Instant, Sleep};

use crate::authority::Tolerant;
use crate::body::{Ending, GrpcBody};
use crate::call::{Out, Shared};
use crate::frame::{self, Deframer, Encoding};
use crate::inbox::{Event, Inbox};
use crate::metadata::{Peer, Remembered};
use crate::options::{Counters, Options};
use crate::status::{
    Status, DEADLINE_EXCEEDED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED,
};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Flow-control windows: of a stream, and of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Data of an answer that a connection buffers before the client has read earlier data.
const SEND_BUFFER: usize = 256 << 10;

/// Share of the queue to Python that one connection may fill.
const SHARE: usize = 4;
/// Shortest interval between checks of a connection.
const SHORTEST_TICK: Duration = Duration::from_millis(10);
/// Number of empty data frames in a row that a client may send.
const EMPTY_PIECES_MAX: usize = 1_000;

/// A method of the table.
#[derive(Clone, Copy)]
pub struct Route {
    /// Index in Python's list.
    pub index: usize,
    /// Requests are a stream, too.
    pub bidirectional: bool,
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
    /// Events for Python.
    pub inbox: Arc<Inbox<Event>>,
    /// Id of the next call.
    pub ids: AtomicU64,
}

/// State shared by the calls of one connection.
pub struct Connection {
    calls: AtomicUsize,
    last: Mutex<Instant>,
    remembered: Remembered,
    unread: AtomicUsize,
    progress: Mutex<Instant>,
    wasted: AtomicUsize,
    wasted_max: usize,
    too_much: Notify,
    unseen: Arc<AtomicUsize>,
}

impl Connection {
    /// Add bytes of answers that wait for the client.
    pub fn unread(&self, size: usize) {
        if self.unread.fetch_add(size, Ordering::AcqRel) == 0 {
            self.moved();
        }
    }

    /// Subtract bytes that were written or dropped.
    pub fn read(&self, size: usize) {
        self.unread.fetch_sub(size, Ordering::AcqRel);
        self.moved();
    }

    /// Count a call that was reset before it was processed. Many in a row are an attack (rapid
    /// reset) that would fill the queue shared by all clients.
    pub fn wasted(&self) {
        if self.wasted.fetch_add(1, Ordering::AcqRel) == self.wasted_max {
            self.too_much.notify_one();
        }
    }

    fn moved(&self) {
        *self
            .progress
            .lock()
            .expect("a thread panicked while it held this lock") = Instant::now();
    }

    fn stalled(&self) -> Duration {
        if self.unread.load(Ordering::Acquire) == 0 {
            return Duration::ZERO;
        }
        self.progress
            .lock()
            .expect("a thread panicked while it held this lock")
            .elapsed()
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
pub async fn serve<S>(door: Arc<Door>, stream: S, peer: Peer, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Arc::new(Connection {
        calls: AtomicUsize::new(0),
        last: Mutex::new(Instant::now()),
        remembered: Remembered::new(peer),
        unread: AtomicUsize::new(0),
        progress: Mutex::new(Instant::now()),
        wasted: AtomicUsize::new(0),
        wasted_max: door.options.resets,
        too_much: Notify::new(),
        unseen: Arc::default(),
    });
    let (idle, patience) = (door.options.idle, door.options.stalled);
    let service = {
        let (door, connection) = (Arc::clone(&door), Arc::clone(&connection));
        service_fn(move |request| {
            let (door, connection) = (Arc::clone(&door), Arc::clone(&connection));
            async move { Ok::<_, Infallible>(answer(door, connection, request).await) }
        })
    };
    let stream = Tolerant::new(stream);
    let greeted = stream.greeted();
    let mut http = pin!(builder(&door.options).serve_connection(TokioIo::new(stream), service));
    let (begun, handshake) = (Instant::now(), door.options.handshake);
    let mut tick = interval((idle.min(patience).min(handshake) / 4).max(SHORTEST_TICK));
    let mut closing = false;
    loop {
        tokio::select! {
            ended = http.as_mut() => {
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
            _ = tick.tick() => {
                connection.wasted.store(0, Ordering::Release);
                if connection.stalled() >= patience {
                    door.counters.connections_stalled.up();
                    return;
                }
                if !greeted.load(Ordering::Acquire) && begun.elapsed() >= handshake {
                    door.counters.handshakes_failed.up();
                    return;
                }
                if closing && connection.idle() >= idle + handshake {
                    return; // not closed within the time after GOAWAY
                }
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
    let deframer = Deframer::new(door.options.message_bytes, encoding);
    let id = door.ids.fetch_add(1, Ordering::Relaxed);
    let call = Arc::new(Shared::new(id, Arc::clone(&connection.unseen)));
    let open = |request| Event::Open {
        call: Arc::clone(&call),
        method: route.index,
        request,
        metadata,
        timeout_ns,
    };
    if route.bidirectional {
        door.begin(open(None));
        let ending = Ending::new(Arc::clone(&call), connection, Arc::clone(&door.inbox));
        tokio::spawn(read_all(
            Arc::clone(&door),
            body,
            deframer,
            Arc::clone(&call),
        ));
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
    open: impl FnOnce(Option<Bytes>) -> Event,
) -> Response<GrpcBody> {
    let read = read_one(&mut body, &mut deframer);
    let message = match within(&mut deadline, read).await {
        Some(Ok(message)) => message,
        Some(Err(status)) => {
            door.counters.requests_broken.up();
            return status_only(&status);
        }
        None => return status_only(&late()),
    };
    // Further data is not read: the library then drops it instead of buffering it.
    drop(body);
    door.begin(open(Some(message)));
    let mut ending = Ending::new(
        Arc::clone(call),
        Arc::clone(&active.0),
        Arc::clone(&door.inbox),
    );
    let first = poll_fn(|context| call.poll_out(context));
    match within(&mut deadline, pin!(first)).await {
        None => status_only(&late()),
        Some(Out::End(status)) => {
            ending.delivered();
            status_only(&status)
        }
        Some(first) => {
            respond(GrpcBody::live(Arc::clone(call), ending, deadline, active).begin(first))
        }
    }
}

impl Door {
    fn begin(&self, open: Event) {
        self.counters.calls.up();
        self.inbox.push(open);
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
        if head.method != Method::POST || !grpc {
            let mut response = Response::new(GrpcBody::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Box::new(response));
        }
        let path = head.uri.path();
        let route = self.routes.get(path).copied().ok_or_else(|| {
            let status = Status::new(UNIMPLEMENTED, format!("unknown method {path}"));
            Box::new(status_only(&status))
        })?;
        let name = head.headers.get(GRPC_ENCODING).map(HeaderValue::as_bytes);
        let encoding = frame::encoding(name).map_err(|status| Box::new(status_only(&status)))?;
        let timeout_ns = self.timeout(&head.headers)?;
        let waiting = self.options.waiting;
        let unseen = connection.unseen.load(Ordering::Acquire);
        if self.inbox.len() >= waiting || unseen >= (waiting / SHARE).max(1) {
            self.counters.calls_refused.up();
            let status = Status::new(
                RESOURCE_EXHAUSTED,
                "too many calls at once; try again later",
            );
            return Err(Box::new(status_only(&status)));
        }
        Ok((route, encoding, timeout_ns))
    }

    fn timeout(&self, headers: &HeaderMap) -> Result<Option<u64>, Box<Response<GrpcBody>>> {
        let Some(value) = headers.get(GRPC_TIMEOUT) else {
            return Ok(None);
        };
        match frame::timeout_ns(value.as_bytes()) {
            Some(ns) => Ok(Some(ns)),
            None => {
                let status = Status::new(INVALID_ARGUMENT, "invalid grpc-timeout");
                Err(Box::new(status_only(&status)))
            }
        }
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
fn status_only(status: &Status) -> Response<GrpcBody> {
    let mut response = respond(GrpcBody::empty());
    status.write(response.headers_mut());
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

async fn read_one(body: &mut Incoming, deframer: &mut Deframer) -> Result<Bytes, Status> {
    loop {
        if let Some(message) = deframer.next()? {
            return Ok(message);
        }
        match data(body).await {
            Ok(Some(chunk)) => deframer.push(chunk),
            Ok(None) | Err(_) => return Err(cut_short()),
        }
    }
}

/// Pass the messages of a stream to Python, one at a time, as it processes them.
async fn read_all(door: Arc<Door>, body: Incoming, deframer: Deframer, call: Arc<Shared>) {
    tokio::select! {
        () = messages(&door, body, deframer, &call) => {}
        () = call.left.notified() => {}
    }
}

async fn messages(door: &Door, mut body: Incoming, mut deframer: Deframer, call: &Shared) {
    loop {
        let Ok(permit) = call.inbound.acquire().await else {
            return;
        };
        permit.forget();
        let message = loop {
            match deframer.next() {
                Ok(Some(message)) => break message,
                Ok(None) => {}
                Err(status) => return broken(door, call, status),
            }
            match data(&mut body).await {
                Ok(Some(chunk)) => deframer.push(chunk),
                Ok(None) if deframer.is_empty() => {
                    return door.inbox.push(Event::HalfClosed(call.id));
                }
                Ok(None) => return broken(door, call, cut_short()),
                Err(_) => return, // reported by the answering side
            }
        };
        door.inbox.push(Event::Message(call.id, message));
    }
}

fn broken(door: &Door, call: &Shared, status: Status) {
    door.counters.requests_broken.up();
    door.inbox
        .push(Event::Broken(call.id, status.code, status.message));
}
