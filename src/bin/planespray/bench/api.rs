//! A stand-in with the signatures of the library's API, over one TCP connection, until that API is there.
//!
//! To be replaced by `pub(super) use planespray::{...}`; nothing outside this file knows the difference.
#![allow(dead_code, clippy::unnecessary_wraps)]

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use planespray::class::{Class, Dscp};

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum UdpPort {
    Auto,
    Fixed(u16),
}
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Fault {
    pub(super) loss: f64,
    pub(super) dup: f64,
    pub(super) reorder: f64,
    pub(super) seed: u64,
}
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Wait {
    Busy,
    Adaptive,
}
#[derive(Clone, Debug)]
pub(super) struct JobKey(String);
impl JobKey {
    pub(super) fn generate() -> Result<JobKey, Error> {
        Ok(JobKey("ab".repeat(32)))
    }
    pub(super) fn from_hex(text: &str) -> Result<JobKey, Error> {
        Ok(JobKey(text.to_owned()))
    }
    pub(super) fn from_env() -> Result<Option<JobKey>, Error> {
        Ok(None)
    }
    pub(super) fn from_file(path: impl AsRef<std::path::Path>) -> Result<JobKey, Error> {
        std::fs::read_to_string(path).map(JobKey).map_err(|e| Error(e.to_string(), false))
    }
    pub(super) fn to_hex(&self) -> String {
        self.0.clone()
    }
}
#[derive(Clone, Debug)]
pub(super) struct FabricConfig {
    pub(super) planes: Vec<IpAddr>,
    pub(super) udp_port: UdpPort,
    pub(super) mtu: u32,
    pub(super) lanes_per_plane: u16,
    pub(super) key: Option<JobKey>,
    pub(super) insecure: bool,
    pub(super) dscp: [Dscp; 3],
    pub(super) receive_buffer: Option<usize>,
    pub(super) pcap: Option<PathBuf>,
    pub(super) fault: Option<Fault>,
    pub(super) wait: Wait,
    pub(super) grant_always: bool,
}
impl Default for FabricConfig {
    fn default() -> Self {
        FabricConfig {
            planes: vec![],
            udp_port: UdpPort::Auto,
            mtu: 4096,
            lanes_per_plane: 4,
            key: None,
            insecure: false,
            dscp: [Dscp::default(); 3],
            receive_buffer: None,
            pcap: None,
            fault: None,
            wait: Wait::Adaptive,
            grant_always: false,
        }
    }
}
#[derive(Debug)]
pub(super) struct Error(String, bool);
impl Error {
    pub(super) fn is_back_pressure(&self) -> bool {
        self.1
    }
}
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Error(e.to_string(), false)
    }
}
pub(super) struct Buffer(Vec<u8>);
impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
#[derive(Clone, Copy)]
pub(super) struct SendOptions {
    pub(super) class: Class,
    pub(super) rendezvous: bool,
    pub(super) channel: u32,
}
pub(super) struct Refused {
    pub(super) buffer: Buffer,
    pub(super) error: Error,
}
pub(super) struct Outcome {
    pub(super) buffer: Option<Buffer>,
    pub(super) result: Result<usize, Error>,
}
#[derive(Clone, Copy)]
pub(super) struct WindowAccess {
    pub(super) write: bool,
    pub(super) read: bool,
    pub(super) atomic: bool,
}
#[derive(Clone, Copy)]
pub(super) struct RemoteWindow(u64);
impl RemoteWindow {
    pub(super) fn from_bytes(b: &[u8]) -> Result<RemoteWindow, Error> {
        b.try_into().map(|b| RemoteWindow(u64::from_le_bytes(b))).map_err(|_| Error("bad token".into(), false))
    }
}
pub(super) struct Exposed(u64, Windows);
impl Exposed {
    pub(super) fn token(&self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}
impl Drop for Exposed {
    fn drop(&mut self) {
        self.1.lock().unwrap().remove(&self.0);
    }
}
type Windows = Arc<Mutex<HashMap<u64, Vec<u8>>>>;
#[derive(Clone)]
pub(super) struct Fabric(FabricConfig, Windows);
pub(super) struct Listener(TcpListener, Fabric);
pub(super) struct Connection(Arc<Mutex<Wire>>, SocketAddr);
pub(super) struct Pending(Arc<Mutex<Wire>>, u64);
#[derive(Clone, Copy, Default)]
pub(super) struct FaultCounts {
    pub(super) loss: u64,
    pub(super) dup: u64,
    pub(super) reorder: u64,
}
pub(super) struct PlaneStats {
    pub(super) plane: u16,
    pub(super) rail: u16,
    pub(super) addr: IpAddr,
    pub(super) udp_port: u16,
    pub(super) bytes: u64,
    pub(super) share: f64,
    pub(super) rtt_us: Option<f64>,
    pub(super) ce_share: Option<f64>,
    pub(super) retransmits: u64,
}
pub(super) struct LaneStats {
    pub(super) plane: u16,
    pub(super) class: Class,
    pub(super) lane: u16,
    pub(super) bytes: u64,
    pub(super) share: f64,
    pub(super) rtt_us: Option<f64>,
    pub(super) ce_share: Option<f64>,
    pub(super) retransmits: u64,
    pub(super) window: u64,
}
pub(super) struct Stats {
    pub(super) planes: Vec<PlaneStats>,
    pub(super) lanes: Vec<LaneStats>,
    pub(super) injected: FaultCounts,
    pub(super) socket_drops: u64,
}
pub(super) struct CloseReport {
    pub(super) undelivered: usize,
}
impl Fabric {
    pub(super) fn open(c: &FabricConfig) -> Result<Fabric, Error> {
        Ok(Fabric(c.clone(), Windows::default()))
    }
    pub(super) fn listen(&self, at: SocketAddr) -> Result<Listener, Error> {
        let l = TcpListener::bind(at)?;
        l.set_nonblocking(true)?;
        Ok(Listener(l, self.clone()))
    }
    pub(super) fn connect(&self, to: SocketAddr, limit: Duration) -> Result<Connection, Error> {
        let s = TcpStream::connect_timeout(&to, limit)?;
        Connection::new(s, to, self)
    }
    pub(super) fn alloc(&self, len: usize) -> Result<Buffer, Error> {
        Ok(Buffer(vec![0; len]))
    }
    pub(super) fn expose(&self, b: Buffer, _: WindowAccess) -> Result<Exposed, Error> {
        let mut w = self.1.lock().unwrap();
        let id = w.len() as u64 + 77;
        w.insert(id, b.0);
        Ok(Exposed(id, self.1.clone()))
    }
    pub(super) fn progress(&self) {}
    pub(super) fn stats(&self) -> Stats {
        let planes = self.0.planes.iter().enumerate().map(|(i, addr)| PlaneStats {
            plane: i as u16,
            rail: 0,
            addr: *addr,
            udp_port: 0,
            bytes: 0,
            share: 0.0,
            rtt_us: None,
            ce_share: None,
            retransmits: 0,
        });
        Stats { planes: planes.collect(), lanes: vec![], injected: FaultCounts::default(), socket_drops: 0 }
    }
}
impl Listener {
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }
    pub(super) fn accept(&self, limit: Duration) -> Result<Connection, Error> {
        let end = Instant::now() + limit;
        loop {
            match self.0.accept() {
                Ok((s, from)) => return Connection::new(s, from, &self.1),
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}
struct Wire {
    s: TcpStream,
    out: Vec<u8>,
    sent: usize,
    inb: Vec<u8>,
    receives: HashMap<u32, VecDeque<(u64, Vec<u8>)>>,
    early: HashMap<u32, VecDeque<(u64, Vec<u8>)>>,
    wait: HashMap<u64, Vec<u8>>,
    done: HashMap<u64, (Vec<u8>, Option<usize>)>,
    windows: Windows,
    next: u64,
    dead: bool,
}
impl Wire {
    fn frame(&mut self, kind: u8, channel: u32, id: u64, body: &[u8]) {
        self.out.push(kind);
        self.out.extend(channel.to_le_bytes());
        self.out.extend(id.to_le_bytes());
        self.out.extend((body.len() as u64).to_le_bytes());
        self.out.extend(body);
    }
    fn pump(&mut self) {
        while self.sent < self.out.len() {
            match self.s.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.dead = true;
                    break;
                }
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        let mut chunk = [0; 65536];
        for _ in 0..64 {
            match self.s.read(&mut chunk) {
                Ok(0) => self.dead = true,
                Ok(n) => {
                    self.inb.extend(&chunk[..n]);
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.dead = true,
            }
            break;
        }
        let mut at = 0;
        while self.inb.len() - at >= 21 {
            let u = |a: usize, n: usize| {
                let mut b = [0; 8];
                b[..n].copy_from_slice(&self.inb[at + a..at + a + n]);
                u64::from_le_bytes(b)
            };
            let (kind, channel, id, len) = (self.inb[at], u(1, 4) as u32, u(5, 8), u(13, 8) as usize);
            if self.inb.len() - at - 21 < len {
                break;
            }
            let body = self.inb[at + 21..at + 21 + len].to_vec();
            at += 21 + len;
            match kind {
                0 => match self.receives.entry(channel).or_default().pop_front() {
                    Some(r) => self.deliver(r, id, &body),
                    None => self.early.entry(channel).or_default().push_back((id, body)),
                },
                1 => {
                    if let Some(b) = self.wait.remove(&id) {
                        self.done.insert(id, (b, Some(0)));
                    }
                }
                2 => {
                    let u = |a: usize| u64::from_le_bytes(body[a..a + 8].try_into().unwrap());
                    let (w, off, len) = (u(0), u(8) as usize, u(16) as usize);
                    let data = self.windows.lock().unwrap()[&w][off..off + len].to_vec();
                    self.frame(3, 0, id, &data);
                }
                _ => {
                    if let Some(mut b) = self.wait.remove(&id) {
                        b[..body.len()].copy_from_slice(&body);
                        self.done.insert(id, (b, Some(body.len())));
                    }
                }
            }
        }
        self.inb.drain(..at);
        if self.dead {
            let waiting: Vec<u64> = self.wait.keys().copied().collect();
            for id in waiting {
                let b = self.wait.remove(&id).unwrap();
                self.done.insert(id, (b, None));
            }
            for q in self.receives.values_mut() {
                for (id, b) in q.drain(..) {
                    self.done.insert(id, (b, None));
                }
            }
        }
    }
    fn deliver(&mut self, (id, mut b): (u64, Vec<u8>), from: u64, body: &[u8]) {
        b[..body.len()].copy_from_slice(body);
        self.done.insert(id, (b, Some(body.len())));
        self.frame(1, 0, from, &[]);
    }
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
impl Connection {
    fn new(s: TcpStream, at: SocketAddr, f: &Fabric) -> Result<Connection, Error> {
        s.set_nonblocking(true)?;
        s.set_nodelay(true)?;
        let wire = Wire {
            s,
            out: vec![],
            sent: 0,
            inb: vec![],
            receives: HashMap::new(),
            early: HashMap::new(),
            wait: HashMap::new(),
            done: HashMap::new(),
            windows: f.1.clone(),
            next: 0,
            dead: false,
        };
        Ok(Connection(Arc::new(Mutex::new(wire)), at))
    }
    pub(super) fn send(&self, o: SendOptions, b: Buffer, len: usize) -> Result<Pending, Refused> {
        let mut w = self.0.lock().unwrap();
        if w.out.len() > 1 << 20 {
            w.pump();
            return Err(Refused { buffer: b, error: Error("full".into(), true) });
        }
        let id = w.id();
        w.frame(0, o.channel, id, &b[..len]);
        w.wait.insert(id, b.0);
        w.pump();
        Ok(Pending(self.0.clone(), id))
    }
    pub(super) fn receive(&self, channel: u32, b: Buffer) -> Result<Pending, Refused> {
        let mut w = self.0.lock().unwrap();
        let id = w.id();
        match w.early.entry(channel).or_default().pop_front() {
            Some((from, body)) => w.deliver((id, b.0), from, &body),
            None => w.receives.entry(channel).or_default().push_back((id, b.0)),
        }
        Ok(Pending(self.0.clone(), id))
    }
    pub(super) fn read(
        &self,
        _: Class,
        b: Buffer,
        len: usize,
        from: &RemoteWindow,
        offset: u64,
    ) -> Result<Pending, Refused> {
        let mut w = self.0.lock().unwrap();
        let id = w.id();
        let body: Vec<u8> = [from.0, offset, len as u64].iter().flat_map(|v| v.to_le_bytes()).collect();
        w.frame(2, 0, id, &body);
        w.wait.insert(id, b.0);
        w.pump();
        Ok(Pending(self.0.clone(), id))
    }
    pub(super) fn peer(&self) -> String {
        self.1.to_string()
    }
    pub(super) fn close(self, limit: Duration) -> CloseReport {
        let end = Instant::now() + limit;
        let mut w = self.0.lock().unwrap();
        while !w.out.is_empty() && !w.dead && Instant::now() < end {
            w.pump();
        }
        CloseReport { undelivered: w.wait.len() }
    }
}
impl Pending {
    pub(super) fn test(&mut self) -> Option<Outcome> {
        let mut w = self.0.lock().unwrap();
        if !w.done.contains_key(&self.1) {
            w.pump();
        }
        let (b, len) = w.done.remove(&self.1)?;
        Some(Outcome { buffer: Some(Buffer(b)), result: len.ok_or_else(|| Error("the peer is gone".into(), false)) })
    }
    pub(super) fn wait(&mut self, limit: Duration) -> Outcome {
        let end = Instant::now() + limit;
        loop {
            if let Some(o) = self.test() {
                return o;
            }
            if Instant::now() >= end {
                return Outcome { buffer: None, result: Err(Error("timed out".into(), true)) };
            }
        }
    }
}
