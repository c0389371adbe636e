//! Whether `planespray qualify` has found out what a NIC can do: its record, read and written.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

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
    let text = path(lookup).and_then(|p| read(&p).ok());
    let record = text.and_then(|t| toml::from_str(&t).ok()).unwrap_or(Record { nic: Vec::new() });
    judge(&record, device)
}

/// Why what was found out could not be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Nowhere to keep it.
    #[error("neither XDG_STATE_HOME nor HOME names a directory; set one of them to keep what was found")]
    NoHome,
    /// There is a record that is not one.
    #[error("{path} is not understood ({what}); move it away and run this again")]
    Strange {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It cannot be read or written.
    #[error("{path}: {source}; give this user the right to it, or name another directory in XDG_STATE_HOME")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Keeps whether `qualify` proved a device, in place of what was known of this device with this firmware. What the record
/// holds of others stays as it is. Gives the record's path.
///
/// # Errors
/// [`RecordError`]; the record is as it was then.
pub fn record(device: &Device, passed: bool, lookup: Lookup<'_>) -> Result<PathBuf, RecordError> {
    let path = path(lookup).ok_or(RecordError::NoHome)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RecordError::File { path, source }
    };
    let mut all: toml::Table = match read(&path) {
        Ok(text) => toml::from_str(&text)
            .map_err(|e| RecordError::Strange { path: path.clone(), what: e.message().to_owned() })?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => toml::Table::new(),
        Err(e) => return Err(failed(&path)(e)),
    };
    let nics = all.entry("nic").or_insert_with(|| toml::Value::Array(Vec::new())).as_array_mut();
    let nics = nics.ok_or_else(|| RecordError::Strange { path: path.clone(), what: "nic is no list".into() })?;
    let firmware = device.firmware.as_deref().unwrap_or_default();
    let ours = [("provider", device.provider()), ("device", &device.name), ("firmware", firmware)];
    nics.retain(|n| ours.iter().any(|&(key, value)| n.get(key).and_then(toml::Value::as_str).unwrap_or("") != value));
    let mut entry: toml::Table = ours.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    entry.insert("passed".into(), passed.into());
    nics.push(toml::Value::Table(entry));

    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed(directory))?;
    // A reader sees the old record or the new one, and never a part.
    let new = directory.join(format!("qualified.toml.{}", std::process::id()));
    let written = File::create(&new).and_then(|mut f| {
        f.write_all(all.to_string().as_bytes())?;
        f.sync_all()?;
        fs::rename(&new, &path)
    });
    written.map_err(|e| {
        // What is left of it helps nobody.
        let _ = fs::remove_file(&new);
        failed(&path)(e)
    })?;
    Ok(path)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_RECORD).read_to_string(&mut text)?;
    Ok(text)
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

    #[test]
    fn a_record_keeps_what_it_holds_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap().to_owned();
        let lookup = |name: &str| (name == "XDG_STATE_HOME").then(|| home.clone());
        let file = record(&device(), false, &lookup).unwrap();
        assert_eq!((file.clone(), is_qualified(&device(), &lookup)), (path(&lookup).unwrap(), Qualification::Unproven));
        let other = "\n[[nic]]\nprovider = \"irdma\"\ndevice = \"rdma0\"\npassed = true\nby = \"hand\"\n";
        fs::write(&file, fs::read_to_string(&file).unwrap() + other).unwrap();
        record(&device(), true, &lookup).unwrap();
        assert_eq!(is_qualified(&device(), &lookup), Qualification::Proven);
        let newer = Device { firmware: Some("28.40".into()), ..device() };
        record(&newer, true, &lookup).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text.matches("[[nic]]").count(), 3, "{text}");
        assert!(text.contains("by = \"hand\"") && text.contains("28.39") && text.contains("28.40"), "{text}");
        record(&device(), false, &lookup).unwrap();
        assert!(matches!(is_qualified(&device(), &lookup), Qualification::OtherFirmware { .. }), "no longer proven");
        let names: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["qualified.toml"], "nothing else is left");

        for (garbage, part) in [("\0garbage", "move it away"), ("nic = 3", "nic is no list")] {
            fs::write(&file, garbage).unwrap();
            let error = record(&device(), true, &lookup).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("qualified.toml"), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), garbage, "it stays as it was");
        }
        assert!(record(&device(), true, &|_| None).unwrap_err().to_string().contains("XDG_STATE_HOME"));
        let nowhere = |name: &str| (name == "XDG_STATE_HOME").then(|| "/proc/nowhere".to_owned());
        assert!(matches!(record(&device(), true, &nowhere), Err(RecordError::File { .. })));
    }
}
