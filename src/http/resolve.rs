//! Turns hosts into addresses, and lets through only those an endpoint may lead to.
//!
//! The addresses that pass are the ones connected to: there is no second lookup in which a name
//! could answer something else.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::Uri;
use ipnet::IpNet;
use ureq::config::Config;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::address::is_public;
use crate::core::endpoint::origin;

/// How long an answer is used again: long enough for a burst, short enough for a failover.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// How long the answer that there is no such name is used again.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// The most names remembered.
const NAMES_MAX: usize = 256;
/// The most lookups at a time. The system's lookup cannot be interrupted, so one that hangs
/// keeps its thread beyond the timeout; this bounds how many can.
const LOOKUPS_MAX: usize = 8;
/// The most addresses the transport takes.
const ADDRESSES_MAX: usize = 16;

/// Which endpoints and addresses may be dialled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust {
    /// The origin of the configured endpoint: every address is fine.
    pub endpoint: Option<String>,
    /// Other origins that the configuration names: the same.
    pub origins: Vec<String>,
    /// Ranges in which endpoints from rows may lie although they are not public.
    pub ranges: Vec<IpNet>,
}

impl Trust {
    /// Whether this origin comes from the configuration.
    pub fn trusts(&self, origin: &str) -> bool {
        self.endpoint.iter().chain(&self.origins).any(|trusted| trusted == origin)
    }

    fn allows(&self, address: IpAddr, secure: bool) -> bool {
        let address = address.to_canonical();
        self.ranges.iter().any(|range| range.contains(&address)) || (secure && is_public(address))
    }
}

/// Why a host gave no address to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("the name was not found")]
    NotFound,
    #[error("the name was not resolved in time")]
    TimedOut,
    #[error("no resolver can be asked")]
    NoResolver,
    #[error("no address of the host is allowed")]
    Refused,
}

/// The resolver of the transport: literals at once, names through a short memory and a bounded
/// number of helper threads.
#[derive(Debug)]
pub(crate) struct GuardedResolver {
    trust: Trust,
    names: Arc<Names>,
}

impl GuardedResolver {
    pub fn new(trust: Trust) -> Self {
        Self::with_lookup(trust, system_lookup)
    }

    fn with_lookup(trust: Trust, lookup: impl Fn(&str) -> Found + Send + Sync + 'static) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { trust, names: Arc::new(Names { lookup: Box::new(lookup), state, changed }) }
    }

    fn addresses(&self, uri: &Uri, limit: Duration) -> Result<Vec<IpAddr>, ResolveError> {
        let host = uri.host().unwrap_or_default();
        let mut addresses = match literal(host) {
            Some(address) => vec![address],
            None => self.names.addresses(&host.to_ascii_lowercase(), limit)?,
        };
        if !self.trust.trusts(&origin(uri)) {
            let secure = uri.scheme_str() == Some("https");
            addresses.retain(|address| self.trust.allows(*address, secure));
            if addresses.is_empty() {
                return Err(ResolveError::Refused);
            }
        }
        Ok(addresses)
    }
}

impl Resolver for GuardedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        _config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let addresses = self
            .addresses(uri, *timeout.after)
            .map_err(|error| ureq::Error::Other(Box::new(error)))?;
        let mut resolved = self.empty();
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            resolved.push(SocketAddr::new(address, port));
        }
        Ok(resolved)
    }
}

/// The address a host spells out. Forms that only the system's lookup takes for an address, such
/// as `127.1` or `0x7f000001`, are left to it, and its answer is filtered like any other.
fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

fn system_lookup(host: &str) -> Found {
    match (host, 0).to_socket_addrs() {
        Ok(found) => Ok(found.map(|address| address.ip()).collect()),
        // Systems word the reasons differently and number none of them; these are the words of the
        // two C libraries of Linux.
        Err(error) => {
            let text = error.to_string();
            let is_temporary =
                ["Temporary failure", "Try again"].iter().any(|words| text.contains(words));
            Err(if is_temporary { ResolveError::NoResolver } else { ResolveError::NotFound })
        }
    }
}

/// The addresses of a name.
type Found = Result<Vec<IpAddr>, ResolveError>;

/// Finds the addresses of a name: the system's lookup, or a test's.
type Lookup = dyn Fn(&str) -> Found + Send + Sync;

/// The names asked for, shared with the threads that ask.
struct Names {
    lookup: Box<Lookup>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    names: HashMap<String, Entry>,
    running: usize,
}

enum Entry {
    Asking,
    Answered { found: Found, until: Instant },
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

impl Names {
    /// The addresses of a name. Threads that ask for the same name share one lookup.
    fn addresses(
        self: &Arc<Self>,
        host: &str,
        limit: Duration,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let started = Instant::now();
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            match state.names.get(host) {
                Some(Entry::Answered { found, until }) if *until > now => return found.clone(),
                Some(Entry::Asking) => {}
                _ if state.running < LOOKUPS_MAX => self.ask(&mut state, host)?,
                _ => {}
            }
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(ResolveError::TimedOut);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask(self: &Arc<Self>, state: &mut State, host: &str) -> Result<(), ResolveError> {
        if state.names.len() >= NAMES_MAX {
            state.names.retain(|_, entry| matches!(entry, Entry::Asking));
        }
        let (shared, name) = (Arc::clone(self), host.to_owned());
        std::thread::Builder::new()
            .name("outbox-resolve".to_owned())
            .spawn(move || {
                let found = (shared.lookup)(&name);
                shared.answer(name, found);
            })
            .map_err(|_| ResolveError::TimedOut)?;
        state.running += 1;
        state.names.insert(host.to_owned(), Entry::Asking);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, host: String, found: Found) {
        let until = Instant::now() + if found.is_ok() { KNOWN_FOR } else { UNKNOWN_FOR };
        let mut state = self.lock();
        state.running -= 1;
        state.names.insert(host, Entry::Answered { found, until });
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
