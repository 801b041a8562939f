//! Messages between our own processes: one JSON value per packet, with descriptors attached. A
//! message that is too long for a packet travels in a memory file, whose descriptor comes first.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest message: far above what an exec accepts (2 MiB of arguments and environment on Linux),
/// far below what would do harm.
const MAX_MESSAGE_BYTES: u64 = 16 << 20;
/// Largest message that travels in the packet itself. Every page of a buffer has a cost.
const MAX_PACKET_BYTES: usize = 8 << 10;
/// Content of a packet whose message is in a memory file; no JSON value begins like this.
const IN_MEMORY_FILE: &[u8] = b"@";
/// Most descriptors in one packet, including that of a memory file.
const MAX_FDS: usize = 9;

/// One end of a pair of connected sockets that carry packets.
#[derive(Debug)]
pub struct PacketChannel(OwnedFd);

impl PacketChannel {
    /// Creates two connected ends.
    pub fn pair() -> io::Result<(PacketChannel, PacketChannel)> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((PacketChannel(one), PacketChannel(other)))
    }

    /// Sends one message, with descriptors.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() <= MAX_PACKET_BYTES {
            return self.send_packet(&bytes, fds);
        }
        let file = write_memory_file(&bytes)?;
        let fds: Vec<_> = std::iter::once(file.as_fd()).chain(fds.iter().copied()).collect();
        self.send_packet(IN_MEMORY_FILE, &fds)
    }

    fn send_packet(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if fds.len() > MAX_FDS {
            return Err(io::Error::from(io::ErrorKind::ArgumentListTooLong));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("no room for the descriptors"));
        }
        let sent = retry_while_crowded(|| {
            rustix::io::retry_on_intr(|| {
                rustix::net::sendmsg(
                    self.0.as_fd(),
                    &[IoSlice::new(bytes)],
                    &mut control,
                    SendFlags::NOSIGNAL,
                )
            })
        })?;
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
    }

    /// Receives the next message; `None` when the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = [0; MAX_PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(self.0.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let mut fds: Vec<OwnedFd> = fds.flatten().collect();
        let packet = &bytes[..received.bytes];
        if packet == IN_MEMORY_FILE && !fds.is_empty() {
            let message = read_memory_file(fds.remove(0))?;
            return Ok(Some((serde_json::from_slice(&message)?, fds)));
        }
        Ok(Some((serde_json::from_slice(packet)?, fds)))
    }
}

fn write_memory_file(bytes: &[u8]) -> io::Result<File> {
    if bytes.len() as u64 > MAX_MESSAGE_BYTES {
        return Err(io::Error::from(io::ErrorKind::ArgumentListTooLong));
    }
    let mut file = File::from(memfd_create("message", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

fn read_memory_file(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(file).take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Pauses between attempts to send descriptors while too many are in transit: about half a second
/// in total.
const PAUSES_MS: [u64; 8] = [1, 2, 4, 8, 16, 64, 128, 256];

/// Retries what the kernel refuses with `ETOOMANYREFS`. The kernel counts the descriptors that all
/// processes of a user have sent and that have not been received yet, so other programs can fill
/// the count for a moment.
fn retry_while_crowded<T>(
    mut send: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    for pause in PAUSES_MS {
        match send() {
            Err(rustix::io::Errno::TOOMANYREFS) => std::thread::sleep(Duration::from_millis(pause)),
            result => return result,
        }
    }
    send()
}

impl AsFd for PacketChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for PacketChannel {
    fn from(fd: OwnedFd) -> PacketChannel {
        PacketChannel(fd)
    }
}

impl From<PacketChannel> for OwnedFd {
    fn from(channel: PacketChannel) -> OwnedFd {
        channel.0
    }
}

/// Lets the kernel close a descriptor once we have closed ours.
///
/// To close an inotify instance with watches takes the kernel 8 ms and more, because it waits until
/// no processor uses them, and someone waits for the end of this process. A descriptor in flight to
/// a socket that itself is only in flight belongs to no one any more: the kernel finds and closes
/// it, since Linux 6.9 in a thread of its own.
pub fn close_in_background(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let (sender, receiver) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let in_flight = [fd, receiver.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&in_flight));
    rustix::net::sendmsg(&sender, &[IoSlice::new(b".")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_message_of_any_length_arrives_with_its_descriptors() {
        let (one, other) = PacketChannel::pair().unwrap();
        for length in [0, MAX_PACKET_BYTES - 2, MAX_PACKET_BYTES - 1, 3 << 20] {
            let text = "x".repeat(length);
            let sender = std::fs::metadata("/dev/null").unwrap();
            one.send(&text, &[File::open("/dev/null").unwrap().as_fd()]).unwrap();
            let (received, mut fds) = other.receive::<String>().unwrap().unwrap();
            assert_eq!((received == text, fds.len()), (true, 1), "{length}");
            let received = File::from(fds.remove(0)).metadata().unwrap();
            use std::os::unix::fs::MetadataExt;
            assert_eq!(received.rdev(), sender.rdev());
        }
        assert!(one.send(&"x".repeat(17 << 20), &[]).is_err());
    }

    #[test]
    fn a_full_count_of_descriptors_is_waited_for_and_not_without_end() {
        let mut refusals = 3;
        let sent = retry_while_crowded(|| match refusals {
            0 => Ok("sent"),
            _ => {
                refusals -= 1;
                Err(Errno::TOOMANYREFS)
            }
        });
        assert_eq!(sent, Ok("sent"));
        assert_eq!(
            retry_while_crowded(|| Err::<(), _>(Errno::TOOMANYREFS)),
            Err(Errno::TOOMANYREFS)
        );
        let mut tries = 0;
        let refused = retry_while_crowded(|| {
            tries += 1;
            Err::<(), _>(Errno::PIPE)
        });
        assert_eq!((refused, tries), (Err(Errno::PIPE), 1));
    }
}
