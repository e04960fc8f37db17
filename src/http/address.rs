//! Which addresses an endpoint that came from a row may lead to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::error::{Error, Result};

/// Reads a range of addresses in CIDR notation, or one address.
pub(crate) fn parse_range(text: &str) -> Result<IpNet> {
    let refuse = |reason: String| Error::invalid("allow_addresses", reason);
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().map_err(|_| {
            refuse(format!("{text:?} is not a range such as 10.0.0.0/8 or fd00::/8"))
        })?,
    };
    // 10.1.2.3/8 may have been meant as one address; widening it would open a network.
    if net.trunc() != net {
        return Err(refuse(format!("{text:?} has bits beyond its prefix; write {}", net.trunc())));
    }
    Ok(match (net.addr().to_canonical(), net.prefix_len()) {
        // Addresses are compared in canonical form, so the range must be in it too.
        (IpAddr::V4(v4), prefix @ 96..) if net.addr().is_ipv6() => {
            Ipv4Net::new(v4, prefix - 96).map_or(net, IpNet::V4)
        }
        _ => net,
    })
}

/// Whether an address belongs to a host on the public internet. The ranges are those of the
/// special-purpose registries; forms that carry an IPv4 address inside an IPv6 one (6to4, NAT64,
/// Teredo) are not public, because what they lead to cannot be seen.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => !SPECIAL_V4.iter().any(|range| range.contains(&v4)),
        IpAddr::V6(v6) => {
            GLOBAL_UNICAST.contains(&v6) && !SPECIAL_V6.iter().any(|range| range.contains(&v6))
        }
    }
}

const SPECIAL_V4: [Ipv4Net; 15] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
];

/// Everything outside it (loopback, link-local, unique local, multicast, NAT64) is special.
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 3);

const SPECIAL_V6: [Ipv6Net; 4] =
    [v6(0x2001, 0, 23), v6(0x2001, 0xdb8, 32), v6(0x2002, 0, 16), v6(0x3fff, 0, 20)];

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(first: u16, second: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0), prefix)
}

#[cfg(test)]
mod tests;
