//! A fabric: this process's ports on all planes, and the engine over them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::buffer::Buffer;
use super::config::{FabricConfig, Wait};
use super::connection::Connection;
use super::error::Error;
use super::establish;
use super::select::{Selected, select};
use super::stats::{Injected, Stats};
use crate::bootstrap::Auth;
use crate::embedded::{Embedded, EmbeddedConfig};
use crate::engine::{Helper, Shared};
use crate::lanes::{Control, PortInfo};
use crate::mem::Region;
use crate::soft::{Udp, UdpConfig};
use crate::spray::SessionConfig;
use crate::time::Span;
use crate::topology::{ChosenPort, interface_speed};
use crate::verbs::{GidChoice, MLX5_VARIABLE, VerbsConfig, VerbsLanes, VerbsPort};

/// Packets of one burst: 15 of the MTU and the one with the immediate fit one `sendmsg`.
const BURST_PACKETS: u32 = 15;
/// Longest message that travels in a control message.
const EAGER_MAX: u32 = 3072;

/// This process's ports on all planes. A clone is another handle; the last one closes the sockets.
#[derive(Clone)]
pub struct Fabric {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    // Joined before the engine goes.
    _helper: Helper,
    pub(super) shared: Arc<Shared<Backend>>,
    pub(super) config: FabricConfig,
    pub(super) auth: Auth,
    pub(super) ports: Vec<PortInfo>,
    /// Line rate of each port in Mb/s, where its interface says one.
    pub(super) speeds: Vec<Option<u32>>,
    pub(super) nonce: u64,
    engine: &'static str,
}

impl Inner {
    pub(super) fn drive(&self) -> bool {
        self.shared.drive()
    }

    pub(super) fn wait_until(&self, timeout: Duration, done: impl FnMut() -> bool) -> bool {
        self.shared.wait_until(self.config.wait == Wait::Busy, timeout, done)
    }

    /// What a session of ours is made with, before the peer's word.
    pub(super) fn session_config(&self) -> SessionConfig {
        SessionConfig {
            eager_max: EAGER_MAX,
            grant_always: self.config.grant_always,
            rebuild: true,
            silence: self.config.silence.into(),
            session_timeout: self.config.peer_timeout.into(),
            ..SessionConfig::default()
        }
    }
}

impl Fabric {
    /// Opens the ports.
    ///
    /// # Errors
    /// A configuration out of range, a missing key, an address that is not local, a port in use, no memory.
    pub fn open(config: &FabricConfig) -> Result<Fabric, Error> {
        let invalid = |what: &str| Error::Config { what: what.into() };
        if !(1..=64).contains(&config.lanes_per_plane) {
            return Err(invalid("lanes per plane must be 1..=64"));
        }
        let auth = match (&config.key, config.insecure) {
            (Some(key), false) => Auth::Key(key.clone()),
            (None, true) => {
                tracing::warn!(
                    "INSECURE: no job key. Anyone who reaches the bootstrap port can join and read this job's data"
                );
                Auth::Insecure
            }
            (Some(_), true) => {
                return Err(invalid("a job key and `insecure` contradict each other: leave one of them out"));
            }
            (None, false) => {
                return Err(invalid(
                    "no job key: give one (for example from PLANESPRAY_JOB_KEY), the same at both ends, or set `insecure` to go without authentication",
                ));
            }
        };
        let selected = select(config)?;
        let lanes = match &selected {
            Selected::Embedded(planes) => embedded(config, planes.clone())?,
            Selected::Verbs(ports) => verbs(config, ports)?,
        };
        let (ports, engine) = (lanes.ports().to_vec(), lanes.caps().name);
        let system = |call: &'static str| {
            move |source| Error::System {
                call,
                subject: "this process".into(),
                source,
                hint: "raise its limits (ulimit -n, -u)",
            }
        };
        let shared = Shared::new(lanes).map_err(system("epoll_create"))?;
        let helper = shared.helper().map_err(system("clone"))?;
        let nonce = random()?;
        let speeds = match &selected {
            Selected::Embedded(_) => ports.iter().map(|p| interface_speed(Path::new("/"), &p.name)).collect(),
            Selected::Verbs(chosen) => chosen.iter().map(|p| p.speed).collect(),
        };
        let inner = Inner { _helper: helper, shared, config: config.clone(), auth, ports, speeds, nonce, engine };
        Ok(Fabric { inner: Arc::new(inner) })
    }

    /// The ports, in plane order.
    pub fn ports(&self) -> &[PortInfo] {
        &self.inner.ports
    }

    /// What moves the bytes: `embedded`, `verbs:mlx5`, `verbs:rxe`, ..
    pub fn engine(&self) -> &'static str {
        self.inner.engine
    }

    /// Registers `len` zeroed bytes, page-aligned, on huge pages where there are some.
    ///
    /// # Errors
    /// No memory, or 65,536 registrations already.
    pub fn alloc(&self, len: usize) -> Result<Buffer, Error> {
        self.buffer(Region::alloc(len)?)
    }

    /// Registers a vector without copying it.
    ///
    /// # Errors
    /// 65,536 registrations already.
    pub fn register(&self, bytes: Vec<u8>) -> Result<Buffer, Error> {
        self.buffer(Region::from_vec(bytes))
    }

    fn buffer(&self, region: Region) -> Result<Buffer, Error> {
        let mr = self.inner.shared.lock().lanes_mut().register(&region)?;
        Ok(Buffer::new(region, mr, self.inner.shared.garbage().clone()))
    }

    /// Waits for peers at a TCP address: connections begin there.
    ///
    /// # Errors
    /// The address is not local or in use.
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener, Error> {
        establish::listen(self, addr)
    }

    /// Connects to a peer that listens at `addr`.
    ///
    /// # Errors
    /// Nobody is there, another key, another protocol, no common plane, or it took longer than `timeout`.
    pub fn connect(&self, addr: SocketAddr, timeout: Duration) -> Result<Connection, Error> {
        establish::connect(self, addr, timeout)
    }

    /// Drives the engine once, if nobody else does. Only needed by callers that poll without waiting.
    pub fn progress(&self) {
        self.inner.drive();
    }

    /// Writes out what the capture that [`FabricConfig::pcap`] asked for still buffers. Dropping the fabric does so too,
    /// but cannot report an error.
    ///
    /// # Errors
    /// The file could not be written, now or earlier; the capture ends there.
    pub fn flush_capture(&self) -> Result<(), Error> {
        match self.inner.shared.lock().lanes_mut().udp_mut() {
            Some(io) => Ok(io.flush_capture()?),
            None => Ok(()),
        }
    }

    /// What happened so far, over all connections that there are.
    pub fn stats(&self) -> Stats {
        let core = self.inner.shared.lock();
        let sessions: Vec<_> = core.sessions().map(|(_, s)| s.stats()).collect();
        let mut stats = Stats::collect(&self.inner.ports, &sessions);
        stats.receive_drops = core.receive_drops();
        if let Some(io) = core.lanes().udp() {
            stats.bad_icrc = io.counters().bad_icrc;
            let faults = io.faults();
            stats.injected = Injected { loss: faults.loss, dup: faults.dup, reorder: faults.reorder };
        }
        stats
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("ports", &self.inner.ports).finish_non_exhaustive()
    }
}

/// Waits for peers.
pub struct Listener {
    pub(super) fabric: Fabric,
    pub(super) local: SocketAddr,
    pub(super) waiting: parking_lot::Mutex<establish::Waiting>,
}

impl Listener {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next peer that completes its handshake.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or what a peer did wrong; the listener goes on in any case.
    pub fn accept(&self, timeout: Duration) -> Result<Connection, Error> {
        self.waiting.lock().accept(&self.fabric, timeout)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.waiting.get_mut().abandon(&self.fabric.inner);
    }
}

/// The embedded engine over these addresses.
fn embedded(config: &FabricConfig, planes: Vec<IpAddr>) -> Result<Backend, Error> {
    if planes.is_empty() || planes.len() > crate::lanes::MAX_PORTS {
        return Err(Error::Config { what: "1 to 8 planes are needed, each with a local address".into() });
    }
    let io = Udp::open(&UdpConfig {
        planes,
        udp_port: config.udp_port,
        mtu: config.mtu,
        receive_buffer: config.receive_buffer,
        pcap: config.pcap.clone(),
        fault: config.fault,
        plane_rate: config.plane_rate,
        ..UdpConfig::default()
    })?;
    let mtu = crate::embedded::PacketIo::ports(&io).iter().map(|p| p.mtu).max().unwrap_or(config.mtu);
    let embedded = EmbeddedConfig {
        seed: random()?,
        max_lanes: 4095,
        max_keys: 1 << 16,
        name: "embedded",
        burst: BURST_PACKETS * mtu,
        // The watchdog decides sooner.
        patience: Span::from(config.peer_timeout).saturating_mul(2),
    };
    Ok(Backend::Embedded(Box::new(Embedded::new(embedded, io))))
}

/// Verbs over these ports.
fn verbs(config: &FabricConfig, ports: &[ChosenPort]) -> Result<Backend, Error> {
    for (asked, what) in [(config.pcap.is_some(), "a capture"), (config.fault.is_some(), "fault injection")] {
        if asked {
            let what =
                format!("{what} needs the embedded engine: devices show no packets; set its engine, or leave it out");
            return Err(Error::Config { what });
        }
    }
    let library = crate::verbs::Library::load_named()?;
    let port = |p: &ChosenPort| VerbsPort {
        device: p.device.clone(),
        port: p.port,
        // Its index may be another by now.
        gid: GidChoice::Address(p.addr),
        rail: p.place.rail,
        plane: p.place.plane,
    };
    let mut verbs = VerbsConfig::new(ports.iter().map(port).collect(), random()?);
    verbs.mlx5 = std::env::var_os(MLX5_VARIABLE).filter(|p| !p.is_empty()).map(Into::into);
    Ok(Backend::Verbs(Box::new(VerbsLanes::open(&library, verbs)?)))
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| Error::System {
        call: "getrandom",
        subject: "the system's random source".into(),
        source: std::io::Error::other(e.to_string()),
        hint: "without randomness keys and packet numbers could be guessed",
    })?;
    Ok(u64::from_le_bytes(bytes))
}
