use std::net::{IpAddr, UdpSocket};

/// Whether a host, by number or `localhost`, is this machine.
pub(crate) fn is_local(host: &str) -> bool {
    if host == "localhost" {
        return true;
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback() || is_own(ip))
}

/// Asks the kernel's routes: what goes to an address of this machine comes from that same address. (Binding
/// to it would not tell, where binding to foreign addresses is allowed.) Nothing is sent.
fn is_own(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Any port will do, but 0 is refused.
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    !ip.is_unspecified() && from().is_ok_and(|from| from.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_own_addresses_are_local_and_others_are_not() {
        for host in ["127.0.0.1", "127.8.9.10", "[::1]", "localhost"] {
            assert!(is_local(host), "{host}");
        }
        // Reserved for documentation, so nobody has them.
        for host in ["192.0.2.1", "[2001:db8::1]", "0.0.0.0", "shop-1.internal", ""] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn the_address_that_the_kernel_sends_from_is_local() {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("a socket can be bound");
        // Without any route out there is no such address, and nothing to ask about.
        if socket.connect(("192.0.2.1", 9)).is_ok() {
            let own = socket.local_addr().expect("it is bound").ip();
            assert!(is_local(&own.to_string()), "{own}");
        }
    }
}
