//! The 128 bytes that travel from a listener to the one that connects.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::abi::HANDLE_BYTES;

const MAGIC: [u8; 8] = *b"plnspray";
/// Version of the handle and of what is said over the links' control channel.
pub(super) const VERSION: u16 = 1;

/// Where a listener is, who it is, and the secret that lets one in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Handle {
    /// Whether the secret is combined with a job key that both ends have.
    pub(super) job_key: bool,
    /// The listening process's bootstrap address.
    pub(super) addr: SocketAddr,
    /// 32 random bytes of the listening process.
    pub(super) secret: [u8; 32],
    /// The listening process's fabric.
    pub(super) peer: u64,
    /// Which of its listeners.
    pub(super) listener: u64,
}

/// Why 128 bytes are no handle for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadHandle {
    /// Another plugin wrote it.
    Foreign,
    /// Another release of ours wrote it.
    Version(u16),
}

impl std::fmt::Display for BadHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadHandle::Foreign => f.write_str(
                "the peer's connection handle was not made by planespray: both nodes must load the same plugin; compare \
                 NCCL_NET_PLUGIN and NCCL_NET of both",
            ),
            BadHandle::Version(theirs) => write!(
                f,
                "the peer's planespray makes connection handles of version {theirs}, this one of version {VERSION}: install \
                 the same release on both nodes"
            ),
        }
    }
}

impl Handle {
    /// As bytes: magic 8, version 2, flags 2, port 2, zero 2, IPv6 (or mapped) address 16, secret 32, peer 8, listener 8, zeros.
    pub(super) fn to_bytes(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let ip = match self.addr.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = u8::from(self.job_key);
        bytes[12..14].copy_from_slice(&self.addr.port().to_le_bytes());
        bytes[16..32].copy_from_slice(&ip.octets());
        bytes[32..64].copy_from_slice(&self.secret);
        bytes[64..72].copy_from_slice(&self.peer.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.listener.to_le_bytes());
        bytes
    }

    /// Back from bytes that a peer wrote.
    pub(super) fn from_bytes(bytes: &[u8; HANDLE_BYTES]) -> Result<Handle, BadHandle> {
        fn part<const N: usize>(bytes: &[u8; HANDLE_BYTES], at: usize) -> [u8; N] {
            std::array::from_fn(|i| bytes[at + i])
        }
        if bytes[..8] != MAGIC {
            return Err(BadHandle::Foreign);
        }
        let version = u16::from_le_bytes(part(bytes, 8));
        if version != VERSION {
            return Err(BadHandle::Version(version));
        }
        let ip = IpAddr::V6(Ipv6Addr::from(part::<16>(bytes, 16))).to_canonical();
        Ok(Handle {
            job_key: bytes[10] & 1 != 0,
            addr: SocketAddr::new(ip, u16::from_le_bytes(part(bytes, 12))),
            secret: part(bytes, 32),
            peer: u64::from_le_bytes(part(bytes, 64)),
            listener: u64::from_le_bytes(part(bytes, 72)),
        })
    }
}
