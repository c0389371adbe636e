//! The server process of a run without host: started, spoken to and ended by its parent.
//!
//! It reads the job key from standard input and ends when that closes, which the kernel does for a parent
//! that dies in whatever way. It answers with one line: the port it listens at.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::api::{JobKey, UdpPort};
use super::options::Resolved;

/// How long it may take to listen, and to end.
const LIMIT: Duration = Duration::from_secs(10);

/// The process; ended and reaped when dropped.
pub(super) struct Server {
    child: Child,
    pub(super) addr: SocketAddr,
}

impl Server {
    /// Starts this program again as server for `planes`.
    pub(super) fn start(resolved: &Resolved, planes: &[IpAddr], key: Option<&JobKey>) -> Result<Server, String> {
        let program = std::env::current_exe().map_err(|e| format!("this program's file is not known: {e}"))?;
        let mut child = Command::new(program)
            .args(arguments(resolved, planes))
            .env_remove("PLANESPRAY_JOB_KEY")
            .env_remove("PLANESPRAY_JOB_KEY_FILE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent, which then ends the run in order.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("the server process could not be started: {e}"))?;
        let first = (|| {
            let mut stdin = child.stdin.as_ref().ok_or("the server process has no input")?;
            let line = key.map_or_else(String::new, JobKey::to_hex);
            writeln!(stdin, "{line}").map_err(|e| format!("the server process ended at once: {e}"))?;
            let stdout = child.stdout.take().ok_or("the server process has no output")?;
            let (tx, rx) = mpsc::channel();
            std::thread::spawn(move || {
                let mut line = String::new();
                let _ = BufReader::new(stdout).read_line(&mut line);
                let _ = tx.send(line);
            });
            let line =
                rx.recv_timeout(LIMIT).map_err(|_| format!("the server process said nothing within {LIMIT:?}"))?;
            line.trim().parse().map_err(|_| "the server process could not start; it said why above".to_owned())
        })();
        match first {
            Ok(addr) => Ok(Server { child, addr }),
            Err(what) => {
                end(&mut child, Duration::from_secs(1));
                Err(what)
            }
        }
    }

    /// Waits for its end after the goodbye; an error if it ended badly.
    pub(super) fn join(mut self) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server process failed: {status}")),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Ok(None) => return Err(format!("the server process did not end within {LIMIT:?}; it was killed")),
                Err(e) => return Err(format!("the server process cannot be waited for: {e}")),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child, Duration::from_secs(2));
    }
}

/// Closes its input, gives it a moment, then kills and reaps it.
fn end(child: &mut Child, moment: Duration) {
    drop(child.stdin.take());
    let deadline = Instant::now() + moment;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(Some(_)) | Err(_) => return,
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The server's options. No secret is among them.
fn arguments(resolved: &Resolved, planes: &[IpAddr]) -> Vec<String> {
    let f = &resolved.fabric;
    let planes: Vec<String> = planes.iter().map(ToString::to_string).collect();
    let mut out: Vec<String> =
        ["bench", "--server", "--child", "--bind", &planes.join(","), "-p", &f.bootstrap_port.to_string()]
            .map(str::to_owned)
            .into();
    let mut option = |name: &str, value: String| out.extend([name.to_owned(), value]);
    option("-q", f.lanes.to_string());
    option("-m", f.mtu.to_string());
    option("--op", resolved.measure.op.name().to_owned());
    if let UdpPort::Fixed(port) = f.udp_port {
        option("--port", port.to_string());
    }
    if let Some(dscp) = f.dscp {
        option("--tclass", (dscp.get() << 2).to_string());
    }
    if let Some(bytes) = f.receive_buffer {
        option("--receive-buffer", bytes.to_string());
    }
    if let Some(fault) = f.fault {
        // Another seed, so that the two ends do not lose in step.
        let seed = fault.seed.wrapping_add(1);
        option("--fault", format!("loss={},dup={},reorder={},seed={seed}", fault.loss, fault.dup, fault.reorder));
    }
    if f.insecure {
        out.push("--insecure".into());
    }
    if !f.probe {
        out.push("--no-probe".into());
    }
    if !f.busy {
        out.push("--wait".into());
    }
    out
}

/// In the server process: the key from standard input, whose end then ends this process.
pub(super) fn inherit() -> Result<Option<JobKey>, String> {
    let mut stdin = BufReader::new(std::io::stdin());
    let mut line = String::new();
    stdin.read_line(&mut line).map_err(|e| format!("the parent process gave no key: {e}"))?;
    let key = match line.trim() {
        "" => None,
        hex => Some(JobKey::from_hex(hex).map_err(|e| e.to_string())?),
    };
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while stdin.read(&mut rest).is_ok_and(|n| n > 0) {}
        std::process::exit(1);
    });
    Ok(key)
}
