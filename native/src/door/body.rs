//! The body of an answer: framed messages, then gRPC's trailers.
//!
//! Data is released in pieces, so that data for a slow client waits here and not in the
//! connection's buffers; "delivered" means that the connection accepted the last piece.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::door::budget::Held;
use crate::door::call::{Out, Shared};
use crate::door::inbox::{Event, Inbox};
use crate::door::service::{Active, Connection};
use crate::door::status::{Status, DEADLINE_EXCEEDED};

const PIECE_BYTES: usize = 128 << 10;

/// Reports the end of a call on the wire to Python, once.
pub struct Ending {
    call: Arc<Shared>,
    connection: Arc<Connection>,
    inbox: Arc<Inbox<Event>>,
    told: bool,
}

impl Ending {
    /// Report the end of this call as an event, unless Python did not request it.
    pub fn new(call: Arc<Shared>, connection: Arc<Connection>, inbox: Arc<Inbox<Event>>) -> Self {
        Self {
            call,
            connection,
            inbox,
            told: false,
        }
    }

    /// Record that the connection accepted the last piece.
    pub fn delivered(&mut self) {
        self.told = true;
        if self.call.watched() {
            self.inbox.push_lazily(Event::Delivered(self.call.id));
        }
        self.call.leave();
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.told {
            self.call.leave();
            if !self.call.taken() {
                self.connection.wasted();
            }
            self.inbox.push(Event::Gone(self.call.id));
        }
    }
}

/// The body that hyper sends.
pub struct GrpcBody {
    data: Bytes,
    end: Option<(Status, Held)>,
    live: Option<Arc<Shared>>,
    deadline: Option<Pin<Box<Sleep>>>,
    ending: Option<Ending>,
    _active: Option<Active>,
}

impl GrpcBody {
    /// No data and no trailers: a headers-only answer.
    pub fn empty() -> Self {
        Self {
            data: Bytes::new(),
            end: None,
            live: None,
            deadline: None,
            ending: None,
            _active: None,
        }
    }

    /// The data that Python sends until it ends the call.
    pub fn live(
        call: Arc<Shared>,
        ending: Ending,
        deadline: Option<Pin<Box<Sleep>>>,
        active: Active,
    ) -> Self {
        Self {
            data: Bytes::new(),
            end: None,
            live: Some(call),
            deadline,
            ending: Some(ending),
            _active: Some(active),
        }
    }

    /// Start with the first data.
    pub fn begin(mut self, first: Out) -> Self {
        self.take(first);
        self
    }

    fn take(&mut self, out: Out) {
        match out {
            Out::Data(data) => self.data = data,
            Out::Whole(data, held) => {
                self.data = data;
                self.end = Some((Status::OK, held));
            }
            Out::End(status, held) => self.end = Some((status, held)),
        }
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let piece = self.data.split_to(self.data.len().min(PIECE_BYTES));
        if let (Some(call), Some(ending)) = (&self.live, &self.ending) {
            ending.connection.prove();
            if call.written(piece.len()) {
                ending.inbox.push(Event::Drained(call.id));
            }
        }
        Frame::data(piece)
    }

    fn trailers(&mut self, status: &Status, held: Held) -> Frame<Bytes> {
        let mut trailers = HeaderMap::with_capacity(2);
        status.write(&mut trailers, held);
        self.live = None;
        if let Some(mut ending) = self.ending.take() {
            if status.code == DEADLINE_EXCEEDED {
                drop(ending); // Python has not answered: notify it
            } else {
                ending.delivered();
            }
        }
        Frame::trailers(trailers)
    }
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            if !self.data.is_empty() {
                return Poll::Ready(Some(Ok(self.piece())));
            }
            if let Some((status, held)) = self.end.take() {
                return Poll::Ready(Some(Ok(self.trailers(&status, held))));
            }
            let Some(call) = &self.live else {
                return Poll::Ready(None);
            };
            match call.poll_out(context) {
                Poll::Ready(out) => self.take(out),
                Poll::Pending => {
                    let Some(deadline) = &mut self.deadline else {
                        return Poll::Pending;
                    };
                    ready!(deadline.as_mut().poll(context));
                    self.deadline = None;
                    let late = Status::new(DEADLINE_EXCEEDED, "the deadline has passed");
                    self.end = self.live.as_ref().map(|call| (late, call.end()));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.end.is_none() && self.live.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
