//! Which addresses an endpoint that came from a row may lead to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses in CIDR notation, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    first: IpAddr,
    prefix: u8,
}

impl Range {
    const fn v4(octets: [u8; 4], prefix: u8) -> Self {
        let [a, b, c, d] = octets;
        Self { first: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(first: u16, second: u16, prefix: u8) -> Self {
        Self { first: IpAddr::V6(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0)), prefix }
    }

    /// Whether the range holds this address, which must be canonical.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix);
                let differing = u32::from(first) ^ u32::from(address);
                differing.checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.prefix);
                let differing = u128::from(first) ^ u128::from(address);
                differing.checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// The first address of the range this one's base lies in, for the given prefix.
    fn masked(address: IpAddr, prefix: u8) -> IpAddr {
        match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("{text:?} is not a range such as 10.0.0.0/8 or fd00::/8");
        let (base, prefix) = match text.split_once('/') {
            Some((base, prefix)) => (base, Some(prefix)),
            None => (text, None),
        };
        let first: IpAddr = base.parse().map_err(|_| malformed())?;
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok().filter(|p| *p <= longest).ok_or_else(malformed)?
            }
            Some(_) => return Err(malformed()),
        };
        // 10.1.2.3/8 may have been meant as one address; widening it would open a network.
        let base = Self::masked(first, prefix);
        if base != first {
            return Err(format!("{text:?} has bits beyond its prefix; write {base}/{prefix}"));
        }
        match canonical(first) {
            // Addresses are compared in canonical form, so the range must be in it too.
            IpAddr::V4(v4) if first.is_ipv6() && prefix >= 96 => {
                Ok(Self { first: IpAddr::V4(v4), prefix: prefix - 96 })
            }
            _ => Ok(Self { first, prefix }),
        }
    }
}

/// The address itself, where it is an IPv4 address written as IPv6.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Whether an address belongs to a host on the public internet. The ranges are those of the
/// special-purpose registries; forms that carry an IPv4 address inside an IPv6 one (6to4, NAT64,
/// Teredo) are not public, because what they lead to cannot be seen.
pub(crate) fn is_public(address: IpAddr) -> bool {
    let address = canonical(address);
    match address {
        IpAddr::V4(_) => !SPECIAL_V4.iter().any(|range| range.contains(address)),
        IpAddr::V6(_) => {
            GLOBAL_UNICAST.contains(address)
                && !SPECIAL_V6.iter().any(|range| range.contains(address))
        }
    }
}

const SPECIAL_V4: [Range; 15] = [
    Range::v4([0, 0, 0, 0], 8),
    Range::v4([10, 0, 0, 0], 8),
    Range::v4([100, 64, 0, 0], 10),
    Range::v4([127, 0, 0, 0], 8),
    Range::v4([169, 254, 0, 0], 16),
    Range::v4([172, 16, 0, 0], 12),
    Range::v4([192, 0, 0, 0], 24),
    Range::v4([192, 0, 2, 0], 24),
    Range::v4([192, 88, 99, 0], 24),
    Range::v4([192, 168, 0, 0], 16),
    Range::v4([198, 18, 0, 0], 15),
    Range::v4([198, 51, 100, 0], 24),
    Range::v4([203, 0, 113, 0], 24),
    Range::v4([224, 0, 0, 0], 4),
    Range::v4([240, 0, 0, 0], 4),
];

/// Everything outside it (loopback, link-local, unique local, multicast, NAT64) is special.
const GLOBAL_UNICAST: Range = Range::v6(0x2000, 0, 3);

const SPECIAL_V6: [Range; 4] = [
    Range { first: IpAddr::V6(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0)), prefix: 23 },
    Range::v6(0x2001, 0xdb8, 32),
    Range::v6(0x2002, 0, 16),
    Range::v6(0x3fff, 0, 20),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:0:7f00:1::",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(ip(text)), "{text}");
        }
    }

    #[test]
    fn other_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert!(is_public(ip(text)), "{text}");
        }
    }

    #[test]
    fn ranges_are_read_and_hold_what_they_say() {
        for (range, inside, outside) in [
            ("127.0.0.0/8", "127.9.9.9", "128.0.0.1"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("::/0", "fe80::1", "1.1.1.1"),
            ("fd00::/8", "fdff::1", "fc00::1"),
            ("::1", "::1", "::2"),
            ("::ffff:127.0.0.0/104", "127.0.0.1", "126.0.0.1"),
        ] {
            let range: Range = range.parse().unwrap();
            assert!(range.contains(ip(inside)), "{range} {inside}");
            assert!(!range.contains(ip(outside)), "{range} {outside}");
        }
    }

    #[test]
    fn malformed_ranges_are_refused() {
        for text in [
            "",
            "localhost",
            "127.1",
            "127.0.0.0/",
            "127.0.0.0/33",
            "127.0.0.0/-1",
            "127.0.0.0/+8",
            "::1/129",
            "127.0.0.0/8/8",
            "10.0.0.0 /8",
        ] {
            assert!(text.parse::<Range>().is_err(), "{text}");
        }
        let error = "10.1.2.3/8".parse::<Range>().unwrap_err();
        assert!(error.contains("10.0.0.0/8"), "{error}");
    }
}
