//! Whether `planespray qualify` has found out what a NIC can do. Here its record is only read.

use std::path::PathBuf;

use super::Lookup;
use super::sysfs::Device;

/// Most bytes of a record that are read.
const MAX_RECORD: u64 = 1 << 20;

/// What is known of a NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Qualification {
    /// `qualify` ran on this NIC with this firmware.
    Proven,
    /// It ran, but with another firmware.
    OtherFirmware {
        /// Which.
        firmware: String,
    },
    /// It has not run.
    Unproven,
}

#[derive(serde::Deserialize)]
struct Record {
    #[serde(default)]
    nic: Vec<Nic>,
}

/// One `[[nic]]` of the record.
#[derive(serde::Deserialize)]
struct Nic {
    provider: String,
    device: String,
    #[serde(default)]
    firmware: String,
    passed: bool,
}

/// What the record in the user's state directory (`$XDG_STATE_HOME/planespray/qualified.toml`, or below
/// `~/.local/state`) says of a device. A record that is missing or not understood proves nothing.
pub fn is_qualified(device: &Device, lookup: Lookup<'_>) -> Qualification {
    let text = path(lookup).and_then(|p| {
        let mut text = String::new();
        let file = std::fs::File::open(p).ok()?;
        std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_RECORD), &mut text).ok()?;
        Some(text)
    });
    let record = text.and_then(|t| toml::from_str(&t).ok()).unwrap_or(Record { nic: Vec::new() });
    judge(&record, device)
}

fn path(lookup: Lookup<'_>) -> Option<PathBuf> {
    let set = |name| lookup(name).filter(|v| v.starts_with('/')).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("planespray/qualified.toml"))
}

fn judge(record: &Record, device: &Device) -> Qualification {
    let firmware = device.firmware.as_deref().unwrap_or_default();
    let ours = || record.nic.iter().filter(|n| n.passed && n.provider == device.provider() && n.device == device.name);
    match (ours().find(|n| n.firmware == firmware), ours().next_back()) {
        (Some(_), _) => Qualification::Proven,
        (None, Some(other)) => Qualification::OtherFirmware { firmware: other.firmware.clone() },
        (None, None) => Qualification::Unproven,
    }
}

impl std::fmt::Display for Qualification {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Qualification::Proven => f.write_str("proven by `planespray qualify`"),
            Qualification::OtherFirmware { firmware } => {
                write!(f, "unproven on this NIC with this firmware (proven with {firmware})")
            }
            Qualification::Unproven => f.write_str("unproven on this NIC"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Node;

    fn device() -> Device {
        Device {
            name: "mlx5_0".into(),
            driver: Some("mlx5_core".into()),
            node: Node::ChannelAdapter,
            firmware: Some("28.39".into()),
            pci: None,
            physical: None,
            numa: None,
            uverbs: None,
            ports: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_record_proves_its_nic_and_firmware() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap().to_owned();
        let lookup = |name: &str| (name == "XDG_STATE_HOME").then(|| home.clone());
        assert_eq!(is_qualified(&device(), &lookup), Qualification::Unproven);
        let file = dir.path().join("planespray/qualified.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let write = |firmware: &str, passed: bool| {
            let nic = format!(
                "[[nic]]\nprovider = \"mlx5\"\ndevice = \"mlx5_0\"\nfirmware = \"{firmware}\"\npassed = {passed}\n"
            );
            std::fs::write(&file, nic).unwrap();
        };
        write("28.39", true);
        assert_eq!(is_qualified(&device(), &lookup), Qualification::Proven);
        write("28.39", false);
        assert_eq!(is_qualified(&device(), &lookup), Qualification::Unproven);
        write("27.1", true);
        let other = is_qualified(&device(), &lookup);
        assert!(other.to_string().contains("unproven on this NIC") && other.to_string().contains("27.1"));
        std::fs::write(&file, "\0garbage").unwrap();
        assert_eq!(is_qualified(&device(), &lookup), Qualification::Unproven);
        // Below the home directory, if no state directory is named.
        let home_only = |name: &str| (name == "HOME").then(|| home.clone());
        assert_eq!(path(&home_only).unwrap(), dir.path().join(".local/state/planespray/qualified.toml"));
    }
}
