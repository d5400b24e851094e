//! The Python class of the server, and its thread.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use bytes::Bytes;
use http::header::HeaderName;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{copy_bidirectional, AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::{watch, Semaphore};
use tokio::task::{yield_now, JoinSet};
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use crate::door::budget::Pool;
use crate::door::call::{reply_many, Call, Outbox};
use crate::door::durations::Durations;
use crate::door::inbox::{Event, Inbox, Open};
use crate::door::metadata::Peer;
use crate::door::newcomers::{Guest, Newcomers, Slices};
use crate::door::options::{Counters, Options};
use crate::door::requests::Requests;
use crate::door::service::{serve, Door, Route, ALL_STREAMS_BYTES, INFLATING_MAX};
use crate::door::tls::{ClientAuthority, Spoken, Tls};
use crate::door::turns::Turns;

/// Backlog of connections that are not accepted yet.
const BACKLOG: i32 = 4096;
/// Pause after a failed accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of the requests that Python takes together: a few milliseconds of its loop.
const TOGETHER_BYTES: usize = 512 << 10;

/// An HTTP/2 server for gRPC whose calls are answered by Python.
#[pyclass(frozen, module = "cometmq_native")]
pub struct Server {
    door: Arc<Door>,
    outbox: Arc<Outbox>,
    durations: Durations,
    /// For each route: Python takes its calls together.
    together: Vec<bool>,
    tls: Arc<Tls>,
    prepare: Py<PyAny>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

#[pymethods]
impl Server {
    /// `routes`: (path, bidirectional) of every method; `names`: the headers to pick;
    /// `prepare(address, tls, certificate, values)`: converts them for `Open`; `options`: the
    /// limits (`options.rs`); `bounds_ms`: the buckets of `durations`.
    #[new]
    #[pyo3(signature = (routes, names, prepare, options, bounds_ms=Vec::new()))]
    fn new(
        routes: Vec<(String, bool)>,
        names: Vec<String>,
        prepare: Py<PyAny>,
        options: &Bound<'_, PyDict>,
        bounds_ms: Vec<u64>,
    ) -> PyResult<Self> {
        let bounds = bounds_ms.into_iter().map(Duration::from_millis).collect();
        let durations = Durations::new(bounds, routes.len());
        let options = Options::from_python(options)?;
        let together = routes
            .iter()
            .map(|(path, bidirectional)| !bidirectional && options.together.contains(path))
            .collect();
        let routes = routes.into_iter().enumerate();
        let routes: HashMap<_, _> = routes
            .map(|(index, (path, bidirectional))| {
                let own = options.method_bytes.get(&path).copied();
                let route = Route {
                    index,
                    bidirectional,
                    message_bytes: own.unwrap_or(options.message_bytes),
                };
                (path, route)
            })
            .collect();
        let names = names
            .into_iter()
            .map(|name| name.parse::<HeaderName>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            door: Arc::new(Door {
                routes,
                names,
                unfinished: Arc::new(Pool::new(options.unfinished.1)),
                unread: Arc::new(Pool::new(options.unread.1)),
                requests: Arc::new(Pool::new(ALL_STREAMS_BYTES)),
                answers: Arc::new(Pool::new(ALL_STREAMS_BYTES)),
                newcomers: Arc::new(Newcomers::new(&options)),
                slices: Slices::default(),
                turns: Turns::default(),
                inflating: Semaphore::new(INFLATING_MAX),
                options,
                counters: Counters::default(),
                inbox: Arc::new(Inbox::new()?),
                ids: AtomicU64::new(1),
            }),
            outbox: Arc::new(Outbox::default()),
            durations,
            together,
            tls: Arc::new(Tls::default()),
            prepare,
            thread: Mutex::new(None),
        })
    }

    /// The descriptor that is readable while `take` has something.
    fn descriptor(&self) -> i32 {
        self.door.inbox.descriptor()
    }

    /// Listen and serve in a thread; returns the port. Raises OSError with its errno.
    fn listen(&self, address: &str, port: u16) -> PyResult<u16> {
        let address: IpAddr = address
            .parse()
            .map_err(|_| PyValueError::new_err(format!("{address} is not an IP address")))?;
        let mut thread = self
            .thread
            .lock()
            .expect("a thread panicked while it held this lock");
        if thread.is_some() {
            return Err(PyRuntimeError::new_err("the server is already listening"));
        }
        let listener = bind(SocketAddr::new(address, port)).map_err(|error| {
            PyOSError::new_err((error.raw_os_error().unwrap_or(0), error.to_string()))
        })?;
        let port = listener.local_addr()?.port();
        let (door, outbox) = (Arc::clone(&self.door), Arc::clone(&self.outbox));
        let tls = Arc::clone(&self.tls);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let started = thread::Builder::new()
            .name("cometmq-door".into())
            .spawn(move || {
                let inbox = Arc::clone(&door.inbox);
                runtime.block_on(run(door, listener, tls, outbox));
                drop(runtime); // open calls report that they are gone
                inbox.push(Event::Closed);
            })?;
        *thread = Some(started);
        Ok(port)
    }

    /// Take up to `max` events as tuples that start with the number of their kind (see `describe`).
    /// Calls in a row of a method of `together` are one tuple: (9, method, calls, requests,
    /// metadata, timeouts): a list of calls, `Requests`, the metadata each with the number of calls
    /// in a row that have it, and a list of timeouts.
    fn take<'py>(&self, py: Python<'py>, max: usize) -> PyResult<Bound<'py, PyList>> {
        let events = self.door.inbox.take(max);
        let now = Instant::now();
        let described = PyList::empty(py);
        let mut row = Row::default();
        for event in events {
            let together = match event {
                Event::Open(open) if open.call.has_left() => continue, // it has reached nothing
                Event::Open(open) if self.takes_together(&open) => open,
                event => {
                    std::mem::take(&mut row).end(&described)?;
                    described.append(self.describe(py, event, now)?)?;
                    continue;
                }
            };
            if row.method != together.method || row.bytes >= TOGETHER_BYTES {
                std::mem::take(&mut row).end(&described)?;
            }
            row.add(self.opened(py, together, now)?);
        }
        row.end(&described)?;
        Ok(described)
    }

    /// Send one message and the end on each of these calls, as `Call.reply`, with one wake-up of the
    /// network thread. Or a list of messages, joined; an event reports their delivery. Returns the
    /// positions of the calls whose client has left. Other objects in the place of a call are
    /// skipped.
    fn reply_many(
        &self,
        calls: &Bound<'_, PyList>,
        messages: &Bound<'_, PyList>,
    ) -> PyResult<Vec<usize>> {
        reply_many(&self.outbox, &self.durations, calls, messages)
    }

    /// Return the calls that `reply_many` answered with one message: for each route the calls by
    /// bucket and their nanoseconds.
    fn durations(&self) -> Vec<(Vec<u64>, u64)> {
        self.durations.counted()
    }

    /// Stop accepting, let calls end, close. After `grace_ms` the remaining connections are closed.
    /// The last event is `Closed`. A second call shortens the time.
    fn stop(&self, grace_ms: u64) {
        self.outbox.stop(grace_ms);
    }

    /// Return the address that was refused last because it has as many connections as it may, once.
    fn refused_address(&self) -> Option<String> {
        self.door
            .newcomers
            .refused()
            .map(|address| address.to_string())
    }

    /// Return all counters as a dict.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.door.counters.to_python(py)?;
        counters.set_item("unfinished_bytes", self.door.unfinished.used())?;
        counters.set_item("connections_crowded", self.door.newcomers.crowded())?;
        let unread = self.door.unread.used() + self.door.answers.used();
        counters.set_item("unread_bytes", unread)?;
        Ok(counters)
    }

    /// Enable TLS with this certificate chain and key (PEM). With `client_ca` (PEM) clients need a
    /// certificate signed by it; with `client_optional` they may also have none. One that the
    /// revocation lists `crl` (PEM) name is refused. Raises ValueError.
    #[pyo3(signature = (chain, key, client_ca=None, client_optional=false, crl=None))]
    fn set_tls(
        &self,
        chain: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
        client_optional: bool,
        crl: Option<&[u8]>,
    ) -> PyResult<()> {
        let clients = client_ca.map(|certificates| ClientAuthority {
            certificates,
            required: !client_optional,
            revoked: crl.unwrap_or_default(),
        });
        self.tls
            .replace(chain, key, clients)
            .map_err(PyValueError::new_err)
    }

    /// Close connections in plaintext from now on.
    fn refuse_plaintext(&self) {
        self.tls.refuse_plaintext();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Python cannot answer any more: end the calls, so that clients do not wait.
        self.outbox.stop(0);
    }
}

/// A call for Python.
struct Opened<'py> {
    call: Bound<'py, Call>,
    method: usize,
    request: Option<Bytes>,
    prepared: Bound<'py, PyAny>,
    timeout_ns: i64,
}

/// Calls in a row of one method, in columns.
#[derive(Default)]
struct Row<'py> {
    method: usize,
    bytes: usize,
    calls: Vec<Bound<'py, Call>>,
    requests: Vec<Bytes>,
    prepared: Vec<(Bound<'py, PyAny>, usize)>,
    timeouts_ns: Vec<i64>,
}

impl<'py> Row<'py> {
    fn add(&mut self, opened: Opened<'py>) {
        let request = opened.request.unwrap_or_default();
        self.method = opened.method;
        self.bytes += request.len();
        self.calls.push(opened.call);
        self.requests.push(request);
        match self.prepared.last_mut() {
            Some((last, count)) if last.is(&opened.prepared) => *count += 1,
            _ => self.prepared.push((opened.prepared, 1)),
        }
        self.timeouts_ns.push(opened.timeout_ns);
    }

    /// Append the calls, if there are any, as one event.
    fn end(self, events: &Bound<'py, PyList>) -> PyResult<()> {
        if self.calls.is_empty() {
            return Ok(());
        }
        let requests = Requests(self.requests);
        let (prepared, timeouts_ns) = (self.prepared, self.timeouts_ns);
        events.append((
            9u8,
            self.method,
            self.calls,
            requests,
            prepared,
            timeouts_ns,
        ))
    }
}

impl Server {
    fn takes_together(&self, open: &Open) -> bool {
        self.together[open.method] && open.request.is_some()
    }

    fn opened<'py>(&self, py: Python<'py>, open: Open, now: Instant) -> PyResult<Opened<'py>> {
        open.call.take();
        drop(open.held);
        let call = Call::new(open.call, Arc::clone(&self.outbox), open.method, now);
        let timeout_ns = open.timeout_ns;
        Ok(Opened {
            call: Bound::new(py, call)?,
            method: open.method,
            request: open.request,
            prepared: open.metadata.prepared(py, &self.prepare)?,
            timeout_ns: timeout_ns.map_or(-1, |ns| i64::try_from(ns).unwrap_or(i64::MAX)),
        })
    }

    /// (0, call, method, request or None, metadata, timeout ns or -1) | (1, id, message) |
    /// (2, id) half-closed | (3, id) gone | (4, id) delivered | (5, id) drained |
    /// (6, id, code, text) broken | (7,) closed | (8, descriptor, peer) remoting, which the caller
    /// closes
    fn describe<'py>(
        &self,
        py: Python<'py>,
        event: Event,
        now: Instant,
    ) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            Event::Open(open) => {
                let opened = self.opened(py, open, now)?;
                let Opened {
                    call,
                    method,
                    request,
                    prepared,
                    timeout_ns,
                } = opened;
                let request = request.map(|request| PyBytes::new(py, &request));
                (0u8, call, method, request, prepared, timeout_ns).into_pyobject(py)
            }
            Event::Message(id, message, held) => {
                drop(held);
                (1u8, id, PyBytes::new(py, &message)).into_pyobject(py)
            }
            Event::HalfClosed(id) => (2u8, id).into_pyobject(py),
            Event::Gone(id) => (3u8, id).into_pyobject(py),
            Event::Delivered(id) => (4u8, id).into_pyobject(py),
            Event::Drained(id) => (5u8, id).into_pyobject(py),
            Event::Broken(id, code, text) => (6u8, id, code, text).into_pyobject(py),
            Event::Closed => (7u8,).into_pyobject(py),
            Event::Remoting(socket, peer, certificate) => {
                let certificate = certificate.map(|der| PyBytes::new(py, &der));
                (8u8, socket.into_raw_fd(), peer, certificate).into_pyobject(py)
            }
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

async fn run(door: Arc<Door>, listener: std::net::TcpListener, tls: Arc<Tls>, outbox: Arc<Outbox>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    let newcomers = Arc::clone(&door.newcomers);
    let (slices, turns) = (Arc::clone(&door), Arc::clone(&door));
    tokio::spawn(async move { slices.slices.run().await });
    tokio::spawn(async move { turns.turns.run().await });
    let grace_ms = {
        let mut orders = std::pin::pin!(outbox.work());
        loop {
            tokio::select! {
                grace_ms = &mut orders => break grace_ms,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let room = connections.len() < door.options.connections;
                        let guest = room.then(|| newcomers.admit(peer.ip(), Instant::now()));
                        match guest.flatten() {
                            None => door.counters.connections_refused.up(),
                            Some(guest) => {
                                door.counters.accepted.up();
                                let (door, tls) = (Arc::clone(&door), Arc::clone(&tls));
                                let stop = stopping.clone();
                                let work = connection(door, tls, (stream, peer), guest, stop);
                                connections.spawn(work);
                            }
                        }
                        yield_now().await; // what is ready goes before the next one
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    };
    drop(listener);
    let _ = stop.send(true);
    drain(connections, grace_ms, &outbox).await;
}

/// Wait for the last connection within the grace time; a second stop order ends the wait.
async fn drain(mut connections: JoinSet<()>, grace_ms: u64, outbox: &Outbox) {
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = ended => {}
        () = sleep(Duration::from_millis(grace_ms)) => {}
        grace_ms = outbox.work() => sleep(Duration::from_millis(grace_ms)).await,
    }
}

async fn connection(
    door: Arc<Door>,
    tls: Arc<Tls>,
    (stream, peer): (TcpStream, SocketAddr),
    Guest { newcomer, place }: Guest,
    stop: watch::Receiver<bool>,
) {
    door.counters.connections.up();
    // Small answers must not be delayed (Nagle). An error means that the socket is closing.
    let _ = stream.set_nodelay(true);
    let address = name_of(peer);
    let patience = door.options.handshake;
    let handshake = tls.accept(stream, patience, door.options.remoting);
    let spoken = door.slices.share(handshake).await;
    match spoken {
        Ok(Spoken::Plain(stream)) => {
            let peer = Peer {
                address,
                tls: false,
                certificate: None,
            };
            serve(Arc::clone(&door), stream, peer, (newcomer, &place), stop).await;
        }
        Ok(Spoken::Tls(stream)) => {
            door.counters.tls.up();
            let peer = over_tls(address, &stream);
            serve(Arc::clone(&door), *stream, peer, (newcomer, &place), stop).await;
        }
        Ok(Spoken::TlsRead(stream)) => {
            door.counters.tls.up();
            let peer = over_tls(address, stream.get_ref());
            serve(Arc::clone(&door), *stream, peer, (newcomer, &place), stop).await;
        }
        Ok(Spoken::Remoting(stream)) => {
            drop((newcomer, place)); // Python has limits of its own
                                     // A socket that cannot be taken back from tokio is closed.
            if let Ok(stream) = stream.into_std() {
                hand_over(&door, stream.into(), address, None);
            }
        }
        Ok(Spoken::RemotingTls(stream)) => {
            drop(newcomer);
            door.counters.tls.up();
            let peer = over_tls(address, stream.get_ref());
            decrypt_for_python(&door, *stream, peer).await;
        }
        Err(_) => door.counters.handshakes_failed.up(),
    }
    door.counters.connections.down();
}

fn over_tls(address: String, stream: &TlsStream<TcpStream>) -> Peer {
    let shown = stream.get_ref().1.peer_certificates();
    Peer {
        address,
        tls: true,
        certificate: shown.and_then(|chain| Some(chain.first()?.to_vec())),
    }
}

fn hand_over(door: &Door, socket: OwnedFd, peer: String, certificate: Option<Vec<u8>>) {
    door.counters.remoting.up();
    door.inbox.push(Event::Remoting(socket, peer, certificate));
}

/// Pass a connection to Python as a socket without TLS, and copy until one end closes; the drain of
/// the server ends what is left.
async fn decrypt_for_python<S>(door: &Door, mut stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Ok((mut own, other)) = UnixStream::pair() else {
        return; // no descriptors are left
    };
    let Ok(other) = other.into_std() else {
        return;
    };
    hand_over(door, other.into(), peer.address, peer.certificate);
    // The reason why a client has left does not matter.
    let _ = copy_bidirectional(&mut stream, &mut own).await;
}

/// Format host:port; an IPv4-mapped address is shown as IPv4.
fn name_of(peer: SocketAddr) -> String {
    SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string()
}
