//! Cuts the connections of a running process, from outside, where they are.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{Shutdown, SocketAddrAny, getpeername, getsockname, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Ends every TCP connection of the process `pid` whose other end is one of `ports` of this machine; how many those were.
///
/// The kernel does it, in both directions and at any moment: in the middle of a message, before an answer, after a commit
/// that nobody will hear of. The process may connect again at once.
pub(crate) fn connections(pid: u32, ports: &[u16]) -> io::Result<usize> {
    let found = to(pid, ports)?;
    Ok(found.iter().filter(|descriptor| shutdown(descriptor, Shutdown::Both).is_ok()).count())
}

/// The near ends' ports of the same connections: as the server knows them.
pub(crate) fn own_ports(pid: u32, ports: &[u16]) -> io::Result<Vec<u16>> {
    Ok(to(pid, ports)?.iter().filter_map(|descriptor| port(getsockname(descriptor).ok()?)).collect())
}

/// The TCP connections of the process `pid` whose other end is one of `ports` of this machine.
fn to(pid: u32, ports: &[u16]) -> io::Result<Vec<OwnedFd>> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no such process"))?;
    let process = pidfd_open(number, PidfdFlags::empty())?;
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may be closed by now.
        let Ok(descriptor) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        if peer_port(&descriptor).is_some_and(|port| ports.contains(&port)) {
            found.push(descriptor);
        }
    }
    Ok(found)
}

/// The other end's port, if this is a connection.
fn peer_port(descriptor: &OwnedFd) -> Option<u16> {
    port(getpeername(descriptor).ok()??)
}

fn port(address: SocketAddrAny) -> Option<u16> {
    std::net::SocketAddr::try_from(address).ok().map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_connections_to_these_ports_are_cut() {
        let [cut_there, kept_there] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
        let port = |listener: &TcpListener| listener.local_addr().expect("it has an address").port();
        let connect = |listener: &TcpListener| TcpStream::connect(("127.0.0.1", port(listener))).expect("it listens");
        let (mut cut, kept) = (connect(&cut_there), connect(&kept_there));
        assert_eq!(connections(std::process::id(), &[port(&cut_there)]).expect("it is this process"), 1);
        assert_eq!(cut.read(&mut [0]).expect("an end is no error"), 0);
        kept.set_nonblocking(true).expect("it is a socket");
        let nothing = (&kept).read(&mut [0]).expect_err("nothing was sent");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
