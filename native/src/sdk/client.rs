//! The client: gRPC calls over HTTP/2 in its own thread, answers to Python in batches.
//!
//! A call is one request and all of its answers, for unary calls and server streams alike; Python
//! gets one notification, when the call has ended. A channel has one connection at a time, dialled
//! when a call needs it; its addresses are alternatives, tried in order. Nothing is retried: the
//! caller decides.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_TYPE, TE, USER_AGENT};
use http::{Request, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{timeout, Instant};

use crate::door::frame::{self, Deframer, Encoding};
use crate::door::inbox::{Inbox, Laned};
use crate::door::status::{Status, DEADLINE_EXCEEDED, UNAVAILABLE, UNKNOWN};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("cometmq-native/", env!("CARGO_PKG_VERSION")));
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Time limit for connecting to the last address, and to one that others follow.
const DIAL: Duration = Duration::from_secs(3);
const DIAL_NEXT: Duration = Duration::from_secs(1);
/// After all addresses failed, calls fail at once for this time; doubled with each round. The limit is
/// short, because it delays the first call after a restart of all brokers; callers pause, too.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(500);
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_ANSWER: Duration = Duration::from_secs(10);
/// Interval of TCP keepalive probes, and the time without an acknowledgement after which the kernel
/// closes the connection (TCP_USER_TIMEOUT). They detect a host that vanished; servers of other
/// makers refuse HTTP/2 pings as frequent as this. The kernel compares the time when it sends a
/// probe: it must have passed at the second one, because calls end at the third.
const PROBE: Duration = Duration::from_secs(1);
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MS: u32 = 1_800;
#[cfg(not(target_os = "linux"))]
const PROBES: u32 = 2;
/// Flow-control windows: of a stream, and of the connection.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// The result of a call, and the messages received.
struct Done {
    id: u64,
    status: Status,
    messages: Vec<Bytes>,
}

impl Laned for Done {
    fn lane(&self) -> Option<u16> {
        Some(0) // the servers that a node calls do not compete
    }
}

/// One channel: its addresses and its connection.
struct Channel {
    addresses: Vec<String>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    sender: Option<http2::SendRequest<Said>>,
    failed: Option<(Instant, Status)>,
    rounds: u32,
    /// Index of the address to dial first. A lost connection is followed by the next address: the
    /// host of the lost one may have vanished, and dialling it would take `DIAL_NEXT`.
    first: usize,
}

/// Calls to any number of servers, and their answers.
#[pyclass(frozen, module = "cometmq_native")]
pub struct Client {
    inbox: Arc<Inbox<Done>>,
    channels: Mutex<HashMap<u64, Arc<Channel>>>,
    calls: Arc<Mutex<HashMap<u64, AbortHandle>>>,
    ids: AtomicU64,
    runtime: Handle,
    ending: watch::Sender<bool>,
}

#[pymethods]
impl Client {
    /// Start the thread.
    #[new]
    fn new() -> PyResult<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (ending, mut ended) = watch::channel(false);
        thread::Builder::new()
            .name("cometmq-client".into())
            .spawn(move || {
                // An error means that the `Client` was dropped: end.
                let _ = runtime.block_on(ended.wait_for(|over| *over));
            })?;
        Ok(Self {
            inbox: Arc::new(Inbox::new()?),
            channels: Mutex::default(),
            calls: Arc::default(),
            ids: AtomicU64::new(1),
            runtime: handle,
            ending,
        })
    }

    /// The descriptor that is readable while `take` has something.
    fn descriptor(&self) -> i32 {
        self.inbox.descriptor()
    }

    /// Add a channel to `host:port` alternatives, dialled on first use. Returns its number.
    fn connect(&self, addresses: Vec<String>) -> PyResult<u64> {
        if addresses.is_empty() {
            return Err(PyValueError::new_err("a channel needs an address"));
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let state = tokio::sync::Mutex::default();
        let channel = Arc::new(Channel { addresses, state });
        self.channels().insert(id, channel);
        Ok(id)
    }

    /// Remove a channel; calls in flight continue.
    fn disconnect(&self, channel: u64) {
        self.channels().remove(&channel);
    }

    /// Start a call; returns its number, which `take` returns once. Raises ValueError for an
    /// invalid channel or header.
    fn call(
        &self,
        channel: u64,
        path: &str,
        message: &[u8],
        metadata: Vec<(String, String)>,
        timeout_ms: u64,
    ) -> PyResult<u64> {
        let wrong = |text: String| PyValueError::new_err(text);
        let channel = self.channels().get(&channel).cloned();
        let channel = channel.ok_or_else(|| wrong("unknown channel".into()))?;
        if u32::try_from(message.len()).is_err() {
            return Err(wrong("a message must be shorter than 4 GiB".into()));
        }
        let mut headers = HeaderMap::with_capacity(metadata.len() + 4);
        for (name, value) in metadata {
            let name: HeaderName = name
                .parse()
                .map_err(|_| wrong(format!("invalid header name {name:?}")))?;
            let value = value
                .parse()
                .map_err(|_| wrong(format!("invalid value of header {name}")))?;
            headers.append(name, value);
        }
        let time = format!("{}m", timeout_ms.min(99_999_999));
        headers.insert(GRPC_TIMEOUT, time.parse().map_err(|_| wrong(time))?);
        headers.insert(CONTENT_TYPE, GRPC);
        headers.insert(TE, TRAILERS);
        headers.insert(USER_AGENT, AGENT);
        let mut framed = BytesMut::new();
        frame::put(&mut framed, message);
        let order = Order {
            path: path.into(),
            headers,
            body: framed.freeze(),
            limit: Duration::from_millis(timeout_ms),
        };
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (inbox, calls) = (Arc::clone(&self.inbox), Arc::clone(&self.calls));
        let mut open = self
            .calls
            .lock()
            .expect("a thread panicked while it held this lock");
        let task = self.runtime.spawn(async move {
            let (status, messages) = order.carry_out(&channel).await;
            calls
                .lock()
                .expect("a thread panicked while it held this lock")
                .remove(&id);
            inbox.push(Done {
                id,
                status,
                messages,
            });
        });
        open.insert(id, task.abort_handle());
        Ok(id)
    }

    /// Cancel a call; `take` does not return it unless it had already ended.
    fn cancel(&self, call: u64) {
        let mut calls = self
            .calls
            .lock()
            .expect("a thread panicked while it held this lock");
        if let Some(task) = calls.remove(&call) {
            task.abort();
        }
    }

    /// Take up to `max` ended calls: (number, gRPC code, error message, messages).
    fn take<'py>(&self, python: Python<'py>, max: usize) -> PyResult<Bound<'py, PyList>> {
        let taken = PyList::empty(python);
        for done in self.inbox.take(max) {
            let messages = done.messages.iter().map(|one| PyBytes::new(python, one));
            let messages = PyList::new(python, messages)?;
            let Status { code, message } = done.status;
            taken.append((done.id, code, message, messages))?;
        }
        Ok(taken)
    }

    /// Close all connections and end the thread.
    fn stop(&self) -> PyResult<()> {
        self.channels().clear();
        self.ending
            .send(true)
            .map_err(|_| PyRuntimeError::new_err("the client is stopped"))
    }
}

impl Client {
    fn channels(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Channel>>> {
        self.channels
            .lock()
            .expect("a thread panicked while it held this lock")
    }
}

/// One outgoing call.
struct Order {
    path: String,
    headers: HeaderMap,
    body: Bytes,
    limit: Duration,
}

impl Order {
    async fn carry_out(self, channel: &Channel) -> (Status, Vec<Bytes>) {
        let mut messages = Vec::new();
        let limit = self.limit;
        let status = match timeout(limit, self.exchange(channel, &mut messages)).await {
            Ok(Ok(status) | Err(status)) => status,
            Err(_) => Status::new(DEADLINE_EXCEEDED, "deadline exceeded"),
        };
        (status, messages)
    }

    async fn exchange(
        self,
        channel: &Channel,
        messages: &mut Vec<Bytes>,
    ) -> Result<Status, Status> {
        let mut sender = channel.sender().await?;
        sender.ready().await.map_err(broken)?;
        // The authority is the first address: our servers ignore it.
        let uri = format!("http://{}{}", channel.addresses[0], self.path);
        let mut request = Request::post(uri)
            .body(Said(Some(self.body)))
            .map_err(|error| Status::new(UNKNOWN, error.to_string()))?;
        *request.headers_mut() = self.headers;
        let answer = sender.send_request(request).await.map_err(broken)?;
        if answer.status() != StatusCode::OK {
            let text = format!("the server answered with HTTP status {}", answer.status());
            return Err(Status::new(UNAVAILABLE, text));
        }
        if let Some(status) = Status::read(answer.headers()) {
            return Ok(status); // headers only
        }
        receive(answer.into_body(), messages).await
    }
}

/// Read the messages and the status that follows them.
async fn receive(mut body: Incoming, messages: &mut Vec<Bytes>) -> Result<Status, Status> {
    let mut deframer = Deframer::new(u32::MAX as usize, Encoding::Gzip);
    loop {
        let piece = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(piece) = piece else {
            return Err(Status::new(UNKNOWN, "the answer ended without a status"));
        };
        match piece.map_err(broken)?.into_data() {
            Ok(data) => {
                deframer.push(data);
                while let Some(message) = deframer.next()? {
                    messages.push(message);
                }
            }
            Err(other) => {
                if let Ok(trailers) = other.into_trailers() {
                    let missing = || Status::new(UNKNOWN, "the answer has no status");
                    return Status::read(&trailers).ok_or_else(missing);
                }
            }
        }
    }
}

fn broken(error: hyper::Error) -> Status {
    use std::error::Error;
    let cause = error
        .source()
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    Status::new(UNAVAILABLE, format!("{error}{cause}"))
}

impl Channel {
    /// Return the connection, or dial it. One call dials, the others wait for it.
    async fn sender(&self) -> Result<http2::SendRequest<Said>, Status> {
        let mut state = self.state.lock().await;
        if let Some(sender) = state.sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        state.sender = None;
        let waiting = state
            .failed
            .as_ref()
            .filter(|(until, _)| *until > Instant::now());
        if let Some((_, status)) = waiting {
            return Err(status.clone());
        }
        let mut last = String::new();
        let count = self.addresses.len();
        for step in 0..count {
            let index = (state.first + step) % count;
            let address = &self.addresses[index];
            let is_last = step + 1 == count;
            match dial(address, if is_last { DIAL } else { DIAL_NEXT }).await {
                Ok(sender) => {
                    *state = State {
                        sender: Some(sender.clone()),
                        first: (index + 1) % count,
                        ..State::default()
                    };
                    return Ok(sender);
                }
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        let pause = PAUSE
            .saturating_mul(1 << state.rounds.min(5))
            .min(PAUSE_MAX);
        let status = Status::new(
            UNAVAILABLE,
            format!("failed to connect to all addresses; last: {last}"),
        );
        state.rounds += 1;
        state.failed = Some((Instant::now() + pause, status.clone()));
        Err(status)
    }
}

/// Let the kernel close the connection when the peer's host stops acknowledging.
fn detect_lost_host(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS)?;
    #[cfg(not(target_os = "linux"))]
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(())
}

async fn dial(address: &str, limit: Duration) -> Result<http2::SendRequest<Said>, String> {
    let stream = timeout(limit, TcpStream::connect(address)).await;
    let stream = stream
        .map_err(|_| "no answer")?
        .map_err(|error| error.to_string())?;
    stream
        .set_nodelay(true)
        .and_then(|()| detect_lost_host(&stream))
        .map_err(|error| error.to_string())?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // The sender reports the end of the connection; calls in flight fail.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// A request's body: one framed message.
struct Said(Option<Bytes>);

impl Body for Said {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|all| Ok(Frame::data(all))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |all| all.len() as u64))
    }
}
