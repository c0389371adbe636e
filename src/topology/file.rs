//! The topology file: rails, planes and speeds that the machine itself does not show.

use std::path::{Path, PathBuf};

/// A topology file; `docs/devices.md` describes it.
#[derive(Clone, PartialEq, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyFile {
    /// What it says of each port.
    #[serde(default, rename = "port")]
    pub ports: Vec<TopologyPort>,
}

/// What the file says of one port. What it leaves out is found as without a file.
#[derive(Clone, PartialEq, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyPort {
    /// The RDMA device's name, or
    pub device: Option<String>,
    /// the interface's.
    pub netdev: Option<String>,
    /// The device's port; 1 if it is left out.
    pub port: Option<u8>,
    /// Its rail, 0..=1023.
    pub rail: Option<u16>,
    /// Its plane, 0..=1023.
    pub plane: Option<u16>,
    /// Its speed in Gb/s, where what the driver says is wrong (a virtual function, a PCI bottleneck).
    pub speed_gbps: Option<f64>,
}

/// What is wrong with a topology file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("topology file {}: {}; check the path", path.display(), std::io::Error::from_raw_os_error(*errno))]
    Read {
        /// Its path.
        path: PathBuf,
        /// The error.
        errno: i32,
    },
    /// It is no TOML, or not of this form.
    #[error("topology file {}: {what}", path.display())]
    Parse {
        /// Its path.
        path: PathBuf,
        /// Line, column and fault, in one line.
        what: String,
    },
    /// A port's values are out of range.
    #[error("topology file {}: port {at} ({name}): {what}", path.display())]
    Port {
        /// Its path.
        path: PathBuf,
        /// Which, from 1.
        at: usize,
        /// Its device or interface.
        name: String,
        /// The fault.
        what: &'static str,
    },
}

impl TopologyFile {
    /// Reads one.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub fn read(path: &Path) -> Result<TopologyFile, FileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| FileError::Read { path: path.into(), errno: e.raw_os_error().unwrap_or(libc::EILSEQ) })?;
        TopologyFile::parse(path, &text)
    }

    /// Parses the text of the file at `path`, which errors name.
    ///
    /// # Errors
    /// Any [`FileError`] but that it cannot be read.
    pub fn parse(path: &Path, text: &str) -> Result<TopologyFile, FileError> {
        let file: TopologyFile = toml::from_str(text).map_err(|e| {
            let at = e.span().map(|s| position(text, s.start)).unwrap_or_default();
            FileError::Parse { path: path.into(), what: format!("{at}{}", e.message().replace('\n', " ")) }
        })?;
        for (i, port) in file.ports.iter().enumerate() {
            let name = port.device.as_ref().or(port.netdev.as_ref()).cloned().unwrap_or_default();
            let bad = |what| Err(FileError::Port { path: path.into(), at: i + 1, name: name.clone(), what });
            if port.device.is_some() == port.netdev.is_some() {
                return bad("either `device` or `netdev` must be given");
            }
            if name.is_empty() {
                return bad("the name is empty");
            }
            if port.port == Some(0) || (port.port.is_some() && port.netdev.is_some()) {
                return bad("`port` is 1 or more, and goes with `device` only");
            }
            if port.rail.is_some_and(|r| r > 1023) || port.plane.is_some_and(|p| p > 1023) {
                return bad("`rail` and `plane` are at most 1023");
            }
            if port.speed_gbps.is_some_and(|s| !(0.001..=100_000.0).contains(&s)) {
                return bad("`speed_gbps` is from 0.001 to 100000");
            }
            let key = |p: &TopologyPort| (p.device.clone(), p.netdev.clone(), p.port.unwrap_or(1));
            if file.ports[..i].iter().any(|p| key(p) == key(port)) {
                return bad("named a second time");
            }
        }
        Ok(file)
    }

    /// What it says of a port of a device with this interface.
    pub fn find(&self, device: &str, port: u8, netdev: Option<&str>) -> Option<&TopologyPort> {
        let by_device = |p: &&TopologyPort| p.device.as_deref() == Some(device) && p.port.unwrap_or(1) == port;
        let by_netdev = |p: &&TopologyPort| p.netdev.is_some() && p.netdev.as_deref() == netdev;
        self.ports.iter().find(by_device).or_else(|| self.ports.iter().find(by_netdev))
    }
}

impl TopologyPort {
    /// The speed in Mb/s, if the file gives one.
    pub fn speed(&self) -> Option<u32> {
        self.speed_gbps.map(|s| (s * 1000.0) as u32)
    }
}

fn position(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TopologyFile, String> {
        TopologyFile::parse(Path::new("/etc/t.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn what_the_document_shows() {
        let text = include_str!("../../docs/devices.md");
        let example = text.split("```toml\n").nth(1).and_then(|t| t.split("```").next()).expect("an example");
        let file = parse(example).unwrap();
        assert_eq!(file.ports.len(), 3);
        let p = file.find("mlx5_0", 2, Some("ens1f1np1")).unwrap();
        assert_eq!((p.rail, p.plane, p.speed()), (Some(0), Some(1), Some(200_000)));
        assert_eq!(file.find("other", 1, Some("eth2")).unwrap().plane, Some(3));
        assert_eq!(file.find("other", 1, None), None);
    }

    #[test]
    fn errors_name_file_place_and_fault() {
        for (text, parts) in [
            ("[[port]]\ndevice = 3", &["/etc/t.toml", "line 2, column 10", "invalid type"][..]),
            ("[[port]]\ndevice = \"a\"\nlane = 1", &["line 3", "lane"]),
            ("x", &["line 1"]),
            ("[[port]]\nrail = 1", &["port 1", "either `device` or `netdev`"]),
            ("[[port]]\ndevice = \"a\"\n[[port]]\ndevice = \"a\"\nport = 1", &["port 2 (a)", "second time"]),
            ("[[port]]\ndevice = \"a\"\nport = 0", &["(a)", "1 or more"]),
            ("[[port]]\nnetdev = \"e\"\nport = 2", &["(e)", "goes with `device` only"]),
            ("[[port]]\ndevice = \"a\"\nplane = 2000", &["at most 1023"]),
            ("[[port]]\ndevice = \"a\"\nspeed_gbps = -1", &["0.001 to 100000"]),
        ] {
            let got = parse(text).unwrap_err();
            for part in parts {
                assert!(got.contains(part), "{text:?}: {part:?} is missing in {got:?}");
            }
            assert!(!got.contains('\n'), "{got:?}");
        }
        let missing = TopologyFile::read(Path::new("/nonexistent/t.toml")).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/t.toml") && missing.contains("No such file"), "{missing}");
        assert!(parse("").unwrap().ports.is_empty());
    }
}
