//! Sends a request, reads its answer, and judges what a failure of the transport proves.

use std::borrow::Cow;
use std::io::{self, Read};
use std::time::Duration;

use http::{Method, Request, Version, header};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, Timeout};

use super::resolve::{GuardedResolver, ResolveError, Trust};
use super::timeouts::Timeouts;
use super::transport::{self, EarlyAnswer};
use crate::core::{Answer, BodyEnd, Failure, Outcome};

/// How much is read or written at once, in bytes.
const BUFFER: usize = 32 * 1024;
/// Connections kept open per host. No more exist than workers, so this only has to be enough.
const IDLE_PER_HOST_MAX: usize = 64;
/// How long a connection is kept. Many servers close theirs after 5 s, and a request that meets
/// the close is in doubt.
const IDLE_AGE: Duration = Duration::from_secs(4);

/// A request that has passed every check.
pub(crate) struct Prepared<'a> {
    pub request: Request<()>,
    /// `None` where no body is sent at all, which is not the same as an empty one.
    pub body: Option<&'a [u8]>,
    /// Scheme, host and port: the only part of the endpoint that may be shown.
    pub origin: String,
    /// How much of the answer's body is read, in bytes.
    pub answer_max: usize,
    /// Whether a connection that was used before may not be taken.
    pub own_connection: bool,
}

/// The transport, configured so that nothing happens behind our back: no redirects, no proxy from
/// the environment, no decompression, a limit on everything.
pub(crate) fn agent(timeouts: &Timeouts, trust: Trust, tls: TlsConfig) -> Agent {
    let (send_head, send_body) = timeouts.send_parts();
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .tls_config(tls)
        .allow_non_standard_methods(true)
        .accept_encoding("identity")
        .user_agent(concat!("sqlite-outbox/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(timeouts.resolve))
        .timeout_connect(Some(timeouts.connect))
        .timeout_send_request(Some(send_head))
        .timeout_send_body(Some(send_body))
        .timeout_recv_response(Some(timeouts.response))
        .timeout_recv_body(Some(timeouts.body))
        .input_buffer_size(BUFFER)
        .output_buffer_size(BUFFER)
        .max_idle_connections(IDLE_PER_HOST_MAX * 2)
        .max_idle_connections_per_host(IDLE_PER_HOST_MAX)
        .max_idle_age(IDLE_AGE)
        .build();
    Agent::with_parts(config, transport::connector(), GuardedResolver::new(trust))
}

/// Sends a request once and reads the answer, its body up to a bound.
pub(crate) fn exchange(
    agent: &Agent,
    prepared: Prepared<'_>,
    timeouts: &Timeouts,
) -> Result<Answer, Outcome> {
    let Prepared { request, body, origin, answer_max, own_connection } = prepared;
    let secure = request.uri().scheme_str() == Some("https");
    let method = request.method().clone();
    transport::begin(own_connection);
    let response = match body {
        Some(body) => agent.run(request.map(|()| body)),
        None => agent.run(request),
    };
    match response {
        Ok(response) => Ok(read(response, &method, answer_max)),
        Err(error) => {
            let sent = transport::handed_over() > 0;
            Err(failure(&error, &origin, secure, sent, timeouts))
        }
    }
}

/// Takes the status and the headers first: whatever happens to the body, they have arrived.
fn read(response: http::Response<Body>, method: &Method, answer_max: usize) -> Answer {
    let (parts, mut body) = response.into_parts();
    let (headers, left_out) = transport::take_fields();
    let status = parts.status.as_u16();
    let chunked = parts.version != Version::HTTP_10
        && parts.headers.get_all(header::TRANSFER_ENCODING).iter().any(|value| {
            value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("chunked"))
        });
    let bodiless = *method == Method::HEAD || matches!(status, 100..=199 | 204 | 304);
    let marked = bodiless || chunked || parts.headers.contains_key(header::CONTENT_LENGTH);

    let (body, end) = read_body(&mut body.as_reader(), answer_max);
    let body_end = match end {
        // The peer just closed. A reset or a cut looks the same from here.
        BodyEnd::Complete if !marked => {
            BodyEnd::Broken("the end of the body is not marked".to_owned())
        }
        end => end,
    };
    Answer { status, headers, left_out, body, body_end }
}

fn read_body(reader: &mut impl Read, most: usize) -> (Vec<u8>, BodyEnd) {
    // A byte more than is wanted tells a body of exactly that size from a longer one.
    let mut limited = reader.take(most as u64 + 1);
    let mut body = Vec::new();
    let result = limited.read_to_end(&mut body);
    let end = if body.len() > most {
        body.truncate(most);
        BodyEnd::Truncated
    } else {
        match result {
            Ok(_) => BodyEnd::Complete,
            Err(error) => BodyEnd::Broken(describe_body_error(&error).to_owned()),
        }
    };
    (body, end)
}

fn describe_body_error(error: &io::Error) -> &'static str {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    match (inner, error.kind()) {
        (Some(ureq::Error::Timeout(_)), _) | (_, io::ErrorKind::TimedOut) => {
            "the body did not end in time"
        }
        (Some(ureq::Error::Protocol(_)), _) => "the body is not well-formed",
        _ => "the connection was closed before the end of the body",
    }
}

/// Judges a failed request. `sent` says that at least one byte of it was handed over.
fn failure(
    error: &ureq::Error,
    origin: &str,
    secure: bool,
    sent: bool,
    timeouts: &Timeouts,
) -> Outcome {
    if let ureq::Error::Other(inner) = error
        && let Some(error) = inner.downcast_ref::<ResolveError>()
    {
        let limit = timeouts.resolve;
        let why = match error {
            ResolveError::NotFound => "the host name was not found".to_owned(),
            ResolveError::TimedOut => format!("the host name was not resolved within {limit:?}"),
            ResolveError::NoResolver => "no resolver can be asked for the host name".to_owned(),
            ResolveError::Refused => return Outcome::Rejected(refused(origin, secure)),
        };
        let is_answer = matches!(error, ResolveError::NotFound);
        let class = if is_answer { "dns" } else { "offline" };
        return Outcome::NotSent(Failure::new(class, format!("{origin}: {why}")));
    }
    let (class, text) = describe(error, secure, sent, timeouts);
    let failure = Failure::new(class, format!("{origin}: {text}"));
    match error {
        _ if sent => Outcome::MaybeSent(failure),
        // Refused by the client itself: it would be refused again every time.
        ureq::Error::Http(_)
        | ureq::Error::BadUri(_)
        | ureq::Error::Tls(_)
        | ureq::Error::Protocol(_) => Outcome::Rejected(failure),
        _ => Outcome::NotSent(failure),
    }
}

/// An endpoint from a row that may not be dialled, and what would open it.
pub(crate) fn refused(origin: &str, secure: bool) -> Failure {
    let why = if secure {
        "the endpoint comes from the intent and leads to no public address"
    } else {
        "the endpoint comes from the intent and is not https"
    };
    let text = format!("{origin}: {why}; allow_addresses or allow_origins can allow it");
    Failure::new("endpoint", text)
}

fn describe(
    error: &ureq::Error,
    secure: bool,
    sent: bool,
    timeouts: &Timeouts,
) -> (&'static str, Cow<'static, str>) {
    use io::ErrorKind as Kind;
    use ureq::Error as E;
    match error {
        E::Timeout(Timeout::Connect) => {
            ("timeout", format!("no connection within {:?}", timeouts.connect).into())
        }
        E::Timeout(Timeout::SendRequest | Timeout::SendBody) => {
            ("timeout", format!("the request could not be sent within {:?}", timeouts.send).into())
        }
        E::Timeout(Timeout::RecvResponse) => {
            ("timeout", format!("no answer within {:?}", timeouts.response).into())
        }
        E::Timeout(_) => ("timeout", "a timeout was reached".into()),
        E::Other(inner) if inner.is::<EarlyAnswer>() => ("reset", EarlyAnswer.to_string().into()),
        E::Protocol(_) if sent => ("protocol", "the answer is not HTTP/1.1".into()),
        E::Http(_) | E::BadUri(_) | E::Protocol(_) => {
            ("request", "the request cannot be put into HTTP".into())
        }
        E::Tls(_) => ("tls", "the host is not a name TLS can verify".into()),
        E::Rustls(_) => ("tls", "the TLS handshake failed".into()),
        E::Io(error) => match error.kind() {
            Kind::InvalidData if secure => ("tls", describe_tls(error).into()),
            Kind::UnexpectedEof
            | Kind::ConnectionReset
            | Kind::BrokenPipe
            | Kind::ConnectionAborted => match (sent, secure) {
                (true, _) => ("reset", "the connection was closed before an answer".into()),
                (false, true) => {
                    ("tls", "the connection was closed during the TLS handshake".into())
                }
                (false, false) => ("connect", "the connection was closed at once".into()),
            },
            Kind::TimedOut | Kind::WouldBlock => ("timeout", "a timeout was reached".into()),
            Kind::ConnectionRefused => ("connect", "the connection was refused".into()),
            Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable
                if !sent =>
            {
                ("offline", "there is no route to the host".into())
            }
            kind if sent => ("transport", format!("the connection failed ({kind})").into()),
            kind => ("connect", format!("no connection could be made ({kind})").into()),
        },
        _ if sent => ("transport", "the connection failed".into()),
        _ => ("connect", "no connection could be made".into()),
    }
}

/// The TLS library's objection in words of our own: its text lists names out of the certificate.
fn describe_tls(error: &io::Error) -> String {
    let text = error.to_string();
    let problem = if text.contains("expired") || text.contains("Expired") {
        "it has expired"
    } else if text.contains("UnknownIssuer") {
        "its issuer is not known"
    } else if text.contains("not valid for name") || text.contains("NotValidForName") {
        "it is for another host name"
    } else if text.contains("CertificateRequired") {
        return "the server asks for a client certificate".to_owned();
    } else if text.contains("peer certificate") {
        "it is not valid"
    } else {
        return "the TLS handshake failed".to_owned();
    };
    format!("the server's certificate was not accepted: {problem}")
}
