use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

const LONG: Duration = Duration::from_secs(20);

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn resolver(ranges: &[&str], answer: &'static [&'static str]) -> GuardedResolver {
    let trust = Trust {
        endpoint: Some("http://trusted.example".into()),
        origins: Vec::new(),
        ranges: ranges
            .iter()
            .map(|range| super::super::address::parse_range(range).unwrap())
            .collect(),
    };
    GuardedResolver::with_lookup(trust, move |_| Ok(ips(answer)))
}

fn resolve(resolver: &GuardedResolver, uri: &str) -> Result<Vec<IpAddr>, ResolveError> {
    resolver.addresses(&uri.parse().unwrap(), LONG)
}

#[test]
fn addresses_of_a_name_are_all_filtered() {
    let resolver = resolver(&[], &["10.0.0.1", "1.1.1.1", "::1", "::ffff:127.0.0.1"]);
    assert_eq!(resolve(&resolver, "https://a.example/"), Ok(ips(&["1.1.1.1"])));
}

#[test]
fn addresses_that_are_private_are_refused_and_ranges_open_them() {
    let refused = Err(ResolveError::Refused);
    assert_eq!(resolve(&resolver(&[], &["10.0.0.1"]), "https://a.example/"), refused);
    let open = resolver(&["10.0.0.0/8"], &["::ffff:10.0.0.1"]);
    assert_eq!(resolve(&open, "https://a.example/"), Ok(ips(&["::ffff:10.0.0.1"])));
    assert_eq!(resolve(&open, "https://127.0.0.1/"), refused);
    assert_eq!(resolve(&open, "https://[::1]/"), refused);
}

#[test]
fn plain_http_is_for_named_ranges_only() {
    let refused = Err(ResolveError::Refused);
    assert_eq!(resolve(&resolver(&[], &["1.1.1.1"]), "http://a.example/"), refused);
    let open = resolver(&["10.0.0.0/8"], &["10.0.0.1"]);
    assert_eq!(resolve(&open, "http://a.example/"), Ok(ips(&["10.0.0.1"])));
    assert_eq!(resolve(&open, "http://1.1.1.1/"), refused);
}

#[test]
fn origin_that_is_trusted_may_lead_anywhere_and_nothing_else_of_that_host_may() {
    let resolver = resolver(&[], &["127.0.0.1"]);
    assert_eq!(resolve(&resolver, "http://TRUSTED.example:80/x"), Ok(ips(&["127.0.0.1"])));
    for uri in ["https://trusted.example/", "http://trusted.example:81/"] {
        assert_eq!(resolve(&resolver, uri), Err(ResolveError::Refused));
    }
}

#[test]
fn loopback_aliases_are_refused_whatever_they_look_like() {
    let resolver = GuardedResolver::new(Trust::default());
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[0:0:0:0:0:ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "[fd00:ec2::254]",
    ] {
        for scheme in ["http", "https"] {
            let result = resolve(&resolver, &format!("{scheme}://{host}/"));
            // A system that knows no such spelling does not reach the filter.
            assert!(
                matches!(result, Err(ResolveError::Refused | ResolveError::NotFound)),
                "{host}: {result:?}"
            );
        }
    }
}

#[test]
fn dns_is_not_asked_for_literals_and_remembers_names() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let resolver = GuardedResolver::with_lookup(Trust::default(), move |host| {
        counter.fetch_add(1, Ordering::SeqCst);
        match host {
            "a.example" => Ok(ips(&["1.1.1.1"])),
            "b.example" => Err(ResolveError::NotFound),
            _ => Err(ResolveError::NoResolver),
        }
    });
    assert!(resolve(&resolver, "https://1.1.1.1/").is_ok());
    assert!(resolve(&resolver, "https://[2606:4700::1111]/").is_ok());
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    for uri in ["https://a.example/", "https://A.Example/"] {
        assert!(resolve(&resolver, uri).is_ok());
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(resolve(&resolver, "https://b.example/"), Err(ResolveError::NotFound));
    assert_eq!(resolve(&resolver, "https://c.example/"), Err(ResolveError::NoResolver));
}

#[test]
fn dns_that_hangs_ends_at_its_timeout_and_takes_a_bounded_number_of_threads() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let resolver = GuardedResolver::with_lookup(Trust::default(), move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let _ = held.lock().unwrap().recv();
        Err(ResolveError::NotFound)
    });
    for i in 0..LOOKUPS_MAX + 4 {
        let uri: Uri = format!("https://{i}.example/").parse().unwrap();
        let result = resolver.addresses(&uri, Duration::from_millis(5));
        assert_eq!(result, Err(ResolveError::TimedOut));
    }
    assert!(asked.load(Ordering::SeqCst) <= LOOKUPS_MAX);
    drop(release);
}
