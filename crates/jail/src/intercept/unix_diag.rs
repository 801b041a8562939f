//! Finds the unix sockets that are listened on in this network namespace, through the kernel's
//! socket diagnostics (`sock_diag`).
//!
//! Every process of a session is in the session's network namespace, and no other process is. So a
//! socket that is listed here was created by the session, and one that is not was created by
//! someone else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const DUMP_REQUEST: u16 = 0x301;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
const LISTENING_STATE: u32 = 1 << 10;
/// Requests the file that a socket is bound to, and the attribute that carries it.
const UDIAG_SHOW_VFS: u32 = 2;
const UNIX_DIAG_VFS: u16 = 1;
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 16;
/// Offset of the socket's number in a message.
const SOCKET_OFFSET: usize = 4;

/// Returns the number of the socket that is bound to this file and listened on, if there is one.
pub fn find_listener(device: u64, inode: u64) -> io::Result<Option<u32>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&socket, &build_request(), SendFlags::empty())?;
    // The kernel reports 32 bits of the inode number, and the device number in its own format.
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file_id = (inode as u32, major << 20 | minor);
    receive_match(&socket, file_id)
}

fn receive_match(socket: &OwnedFd, file_id: (u32, u32)) -> io::Result<Option<u32>> {
    let mut buffer = vec![0; 32 << 10];
    loop {
        let (count, _) = recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..count];
        while let Some(length) =
            read_u32(rest, 0).map(|length| length as usize).filter(|length| *length >= HEADER_BYTES)
        {
            let Some(message) = rest.get(..length) else { break };
            match read_u16(message, 4) {
                Some(NLMSG_DONE) => return Ok(None),
                Some(NLMSG_ERROR) => {
                    return Err(io::Error::other("the kernel refused to list sockets"));
                }
                _ if read_bound_file(message) == Some(file_id) => {
                    return Ok(read_u32(message, HEADER_BYTES + SOCKET_OFFSET));
                }
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        if count == 0 {
            return Ok(None);
        }
    }
}

fn build_request() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40);
    bytes.extend(40_u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    bytes.extend(LISTENING_STATE.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(UDIAG_SHOW_VFS.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// Returns the file (inode, device) of the socket that a message describes.
fn read_bound_file(message: &[u8]) -> Option<(u32, u32)> {
    let mut rest = message.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    loop {
        let length = usize::from(read_u16(rest, 0)?);
        if read_u16(rest, 2)? == UNIX_DIAG_VFS {
            return Some((read_u32(rest, 4)?, read_u32(rest, 8)?));
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_is_found_while_it_is_listened_on() {
        let path = std::env::temp_dir().join(format!("jail-diag-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let file = std::fs::symlink_metadata(&path).unwrap();
        assert!(super::find_listener(file.dev(), file.ino()).unwrap().is_some());
        assert_eq!(super::find_listener(file.dev(), file.ino() + 1).unwrap(), None);
        drop(listener);
        assert_eq!(super::find_listener(file.dev(), file.ino()).unwrap(), None);
        std::fs::remove_file(&path).unwrap();
    }
}
