//! The layer between the transport and its connections.
//!
//! It counts the bytes of a request that were handed to a connection: an error of the transport
//! says what failed, not whether anything had left by then. Names, connecting and the TLS
//! handshake lie below the count, so zero bytes is proof that the request never left.
//!
//! It reads the head of an answer itself, so that a 200 with odd header fields stays one; and it
//! goes on to read where writing broke, because a server that refuses a request by its head closes
//! the connection before it has read the body.

use std::cell::RefCell;
use std::io::ErrorKind as Kind;
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::unversioned::transport::time::Duration as Wait;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, RustlsConnector, TcpConnector, Transport,
};

use super::head::Head;

/// The state of an attempt. The transport does all its work on the thread that asked for it.
#[derive(Debug, Default)]
struct Attempt {
    handed_over: u64,
    /// No connection that was used before may be taken.
    own_connection: bool,
    /// The connection broke while the request was written.
    is_cut: bool,
    head: Head,
}

thread_local! {
    static ATTEMPT: RefCell<Attempt> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Attempt) -> T) -> T {
    ATTEMPT.with_borrow_mut(f)
}

/// Begins a new attempt of this thread.
pub(crate) fn begin(own_connection: bool) {
    with(|attempt| *attempt = Attempt { own_connection, ..Attempt::default() });
}

/// How many bytes of this thread's attempt were handed to a connection.
pub(crate) fn handed_over() -> u64 {
    with(|attempt| attempt.handed_over)
}

/// The header fields of the answer to this thread's attempt, and how many could not be read.
pub(crate) fn take_fields() -> (Vec<(String, String)>, usize) {
    with(|attempt| (std::mem::take(&mut attempt.head.fields), attempt.head.left_out))
}

/// An answer that came before the request was written whole, and does not refuse it.
#[derive(Debug, thiserror::Error)]
#[error("an answer that is no refusal came before the request was sent whole")]
pub(crate) struct EarlyAnswer;

/// Makes connections that count, and that read the heads of answers.
pub(crate) fn connector() -> impl Connector {
    ().chain(TcpConnector::default())
        .chain(Wrap(Patient::new))
        .chain(RustlsConnector::default())
        .chain(Wrap(Counting::new))
}

/// Puts a transport around what the connectors before it have made.
#[derive(Debug)]
struct Wrap<T>(fn(Box<dyn Transport>) -> T);

impl<In: Transport, T: Transport> Connector<In> for Wrap<T> {
    type Out = T;

    fn connect(&self, _: &ConnectionDetails, made: Option<In>) -> Result<Option<T>, Error> {
        Ok(made.map(|made| (self.0)(made.boxed())))
    }
}

/// A connection below TLS that takes a broken write for done: the answer may be there to be read.
#[derive(Debug)]
struct Patient {
    inner: Box<dyn Transport>,
    is_broken: bool,
}

impl Patient {
    fn new(inner: Box<dyn Transport>) -> Self {
        Self { inner, is_broken: false }
    }
}

impl Transport for Patient {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.is_broken {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            Err(Error::Io(error))
                if matches!(
                    error.kind(),
                    Kind::BrokenPipe | Kind::ConnectionReset | Kind::ConnectionAborted
                ) =>
            {
                self.is_broken = true;
                with(|attempt| attempt.is_cut = true);
                Ok(())
            }
            result => result,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        !self.is_broken && self.inner.is_open()
    }
}

/// A connection that counts what it is given before it passes it on, and reads heads.
#[derive(Debug)]
struct Counting {
    inner: Box<dyn Transport>,
    /// The head that is awaited.
    awaited: Option<Head>,
    /// The rest of the head that the transport reads.
    ready: Vec<u8>,
    /// When the peer may close the connection.
    kept_until: Option<Instant>,
}

impl Counting {
    fn new(inner: Box<dyn Transport>) -> Self {
        Self { inner, awaited: None, ready: Vec::new(), kept_until: None }
    }

    fn end_head(&mut self, head: Head) -> Result<(), Error> {
        let is_cut = with(|attempt| attempt.is_cut);
        if is_cut && !head.code().starts_with(b"4") {
            return Err(Error::Other(Box::new(EarlyAnswer)));
        }
        self.kept_until = head.keep_alive().and_then(|timeout| {
            // A request must arrive before the peer closes.
            let margin = (timeout / 2).min(Duration::from_secs(1));
            Instant::now().checked_add(timeout.saturating_sub(margin))
        });
        self.ready = head.for_transport(is_cut);
        with(|attempt| attempt.head = head);
        Ok(())
    }

    /// Whether bytes wait in the layers of TLS, where looking at the socket does not find them.
    fn has_buffered(&mut self) -> bool {
        let at_once = NextTimeout { after: Wait::from_secs(0), ..NextTimeout::default() };
        match self.inner.await_input(at_once) {
            Err(Error::Timeout(_)) => false,
            Err(Error::Io(error)) => !matches!(error.kind(), Kind::TimedOut | Kind::WouldBlock),
            _ => true,
        }
    }
}

impl Transport for Counting {
    fn buffers(&mut self) -> &mut dyn Buffers {
        if self.ready.is_empty() { self.inner.buffers() } else { self }
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.awaited.get_or_insert_default();
        // Before, not after: a write that fails half-way has sent something.
        with(|attempt| attempt.handed_over = attempt.handed_over.saturating_add(amount as u64));
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let has_more = self.inner.await_input(timeout)?;
        let Some(head) = self.awaited.as_mut().filter(|_| has_more) else { return Ok(has_more) };
        let buffers = self.inner.buffers();
        let (used, is_over) = head.feed(buffers.input());
        buffers.input_consume(used);
        match self.awaited.take_if(|_| is_over) {
            Some(head) => self.end_head(head).map(|()| true),
            None => Ok(true),
        }
    }

    /// Asked when a connection is put aside and when it is taken again. What the peer has sent
    /// by then answers no request, and the connection is dropped with it.
    fn is_open(&mut self) -> bool {
        !with(|attempt| attempt.own_connection || attempt.is_cut)
            && self.kept_until.is_none_or(|until| Instant::now() < until)
            && self.inner.is_open()
            && !(self.inner.is_tls() && self.has_buffered())
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

/// While the head that was made for the transport is not read: it comes before all other input.
impl Buffers for Counting {
    fn output(&mut self) -> &mut [u8] {
        self.inner.buffers().output()
    }

    fn input(&self) -> &[u8] {
        &self.ready
    }

    fn input_append_buf(&mut self) -> &mut [u8] {
        self.inner.buffers().input_append_buf()
    }

    fn input_appended(&mut self, amount: usize) {
        self.inner.buffers().input_appended(amount);
    }

    fn input_consume(&mut self, amount: usize) {
        self.ready.drain(..amount);
    }

    fn tmp_and_output(&mut self) -> (&mut [u8], &mut [u8]) {
        self.inner.buffers().tmp_and_output()
    }

    fn can_use_input(&self) -> bool {
        true
    }
}
