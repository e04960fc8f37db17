//! Counts the bytes of a request that were handed to the connection.
//!
//! An error of the transport says what failed, not whether anything had left by then; this says
//! it exactly. Names, connecting and the TLS handshake lie below the wrapper and do not count, so
//! zero bytes is proof that the request never left.

use std::cell::Cell;

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};

thread_local! {
    // The transport does all its work for a request on the thread that asked for it.
    static HANDED_OVER: Cell<u64> = const { Cell::new(0) };
}

/// Starts counting for a new attempt of this thread.
pub(crate) fn reset() {
    HANDED_OVER.set(0);
}

/// How many bytes of this thread's attempt were handed to a connection.
pub(crate) fn handed_over() -> u64 {
    HANDED_OVER.get()
}

/// Makes connections that count.
#[derive(Debug, Default)]
pub(crate) struct CountingConnector(DefaultConnector);

impl Connector for CountingConnector {
    type Out = CountingTransport;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        Ok(self.0.connect(details, chained)?.map(CountingTransport))
    }
}

/// A connection that counts what it is given before it passes it on.
#[derive(Debug)]
pub(crate) struct CountingTransport(Box<dyn Transport>);

impl Transport for CountingTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        // Before, not after: a write that fails half-way has sent something.
        HANDED_OVER.set(HANDED_OVER.get().saturating_add(amount as u64));
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.0.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}
