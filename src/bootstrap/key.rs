//! The job key: the one secret that makes two ends members of the same job.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Environment variable that holds a job key as 64 hexadecimal digits.
pub const KEY_ENV: &str = "PLANESPRAY_JOB_KEY";

/// Environment variable that names a file with a job key.
pub const KEY_FILE_ENV: &str = "PLANESPRAY_JOB_KEY_FILE";

/// 32 secret bytes that every process of a job shares.
///
/// Never printed by `Debug`; overwritten when dropped, as far as safe code can (copies that the compiler
/// made on the stack stay).
#[derive(Clone)]
pub struct JobKey([u8; 32]);

/// Why a key could not be had. No part of the key is in the text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Not 64 hexadecimal digits.
    #[error("a job key is 64 hexadecimal digits, but this has {len} characters{}; make one with `openssl rand -hex 32`",
        if *hex { "" } else { ", not all of them hexadecimal" })]
    NotHex {
        /// Characters found.
        len: usize,
        /// True if all of them were hexadecimal digits.
        hex: bool,
    },
    /// All bytes are the same.
    #[error("this job key is the same byte 32 times, which is no secret; make one with `openssl rand -hex 32`")]
    Weak,
    /// The file could not be read.
    #[error("the job key file {} could not be read: {}", path.display(), std::io::Error::from_raw_os_error(*errno))]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        errno: i32,
    },
    /// Both variables are set.
    #[error("both PLANESPRAY_JOB_KEY and PLANESPRAY_JOB_KEY_FILE are set; unset one of them")]
    Both,
    /// The system gave no random numbers.
    #[error("the system gave no random numbers for a job key")]
    NoRandom,
}

impl JobKey {
    /// A new random key from the system.
    ///
    /// # Errors
    /// [`KeyError::NoRandom`].
    pub fn generate() -> Result<JobKey, KeyError> {
        let mut key = JobKey([0; 32]);
        getrandom::fill(&mut key.0).map_err(|_| KeyError::NoRandom)?;
        Ok(key)
    }

    /// These bytes, unchecked: for secrets that another system made, such as an NCCL handle.
    pub const fn from_bytes(bytes: [u8; 32]) -> JobKey {
        JobKey(bytes)
    }

    /// A key that only who knows both this one and `secret` can have: for one listener of many in the same job.
    #[must_use]
    pub fn bound_to(&self, secret: &[u8; 32]) -> JobKey {
        // As secret as the job key, which is random: whoever knows the other part only still has 32 unknown bytes.
        JobKey(std::array::from_fn(|i| self.0[i] ^ secret[i]))
    }

    /// The key written as 64 hexadecimal digits; blanks around it are ignored.
    ///
    /// # Errors
    /// [`KeyError::NotHex`] or [`KeyError::Weak`].
    pub fn from_hex(text: &str) -> Result<JobKey, KeyError> {
        let text = text.trim();
        let bad = || KeyError::NotHex { len: text.chars().count(), hex: text.bytes().all(|b| b.is_ascii_hexdigit()) };
        if text.len() != 64 {
            return Err(bad());
        }
        let mut key = JobKey([0; 32]);
        for (byte, pair) in key.0.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return Err(bad()) };
            *byte = high << 4 | low;
        }
        if key.0.iter().all(|&b| b == key.0[0]) {
            return Err(KeyError::Weak);
        }
        Ok(key)
    }

    /// The key in a file: 64 hexadecimal digits. Warns in the log if others than the owner may read it.
    ///
    /// # Errors
    /// [`KeyError::File`], or as [`JobKey::from_hex`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<JobKey, KeyError> {
        let path = path.as_ref();
        let fail = |e: std::io::Error| KeyError::File { path: path.to_owned(), errno: e.raw_os_error().unwrap_or(0) };
        let file = std::fs::File::open(path).map_err(fail)?;
        if let Some(mode) = exposed(&file) {
            tracing::warn!(path = %path.display(), mode = format_args!("{mode:o}"),
                "others may read the job key file; chmod 600 it");
        }
        let mut bytes = [0; 256];
        let mut len = 0;
        let mut file = file.take(bytes.len() as u64);
        while len < bytes.len() {
            match file.read(&mut bytes[len..]) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(fail(e)),
            }
        }
        let key = match std::str::from_utf8(&bytes[..len]) {
            Ok(text) => JobKey::from_hex(text),
            Err(_) => Err(KeyError::NotHex { len, hex: false }),
        };
        wipe(&mut bytes);
        key
    }

    /// The key that the environment names: [`KEY_ENV`], or the file in [`KEY_FILE_ENV`]; `None` if neither is set.
    ///
    /// # Errors
    /// Both are set, or what is there is no key.
    pub fn from_env() -> Result<Option<JobKey>, KeyError> {
        // A key that is not Unicode is not hexadecimal either; let `from_hex` say so.
        let text = std::env::var_os(KEY_ENV).map(|v| v.to_string_lossy().into_owned());
        let file = std::env::var_os(KEY_FILE_ENV);
        match (text, file) {
            (Some(_), Some(_)) => Err(KeyError::Both),
            (Some(text), None) => {
                let key = JobKey::from_hex(&text);
                let mut bytes = text.into_bytes();
                wipe(&mut bytes);
                key.map(Some)
            }
            (None, Some(path)) => JobKey::from_file(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The key as 64 hexadecimal digits, to write into a file.
    pub fn to_hex(&self) -> String {
        use fmt::Write;
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl Drop for JobKey {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// How an end proves that it belongs to the job.
#[derive(Clone, Debug)]
pub enum Auth {
    /// By the job key: only who knows it is spoken to, and nobody else can read along.
    Key(JobKey),
    /// Not at all: anybody who reaches the port takes part. The traffic is encrypted, but a fixed public key
    /// stands in for the secret, so an active attacker can be in the middle. The caller should say so loudly.
    Insecure,
}

impl Auth {
    /// Which of the two.
    pub fn mode(&self) -> AuthMode {
        match self {
            Auth::Key(_) => AuthMode::JobKey,
            Auth::Insecure => AuthMode::Insecure,
        }
    }
}

/// Whether an end has a job key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthMode {
    /// Without.
    Insecure,
    /// With.
    JobKey,
}

impl fmt::Display for AuthMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AuthMode::Insecure => "insecure (no job key)",
            AuthMode::JobKey => "with a job key",
        })
    }
}

fn digit(c: u8) -> Option<u8> {
    char::from(c).to_digit(16).map(|d| d as u8)
}

/// Overwrites a secret in a way that the optimizer may not remove.
pub(super) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

/// The permission bits of a file that others than its owner may read.
fn exposed(file: &std::fs::File) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let mode = file.metadata().ok()?.mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn hexadecimal_goes_both_ways() {
        let key = JobKey::generate().expect("random numbers");
        let text = key.to_hex();
        assert_eq!(JobKey::from_hex(&format!(" {text}\n")).expect("valid").bytes(), key.bytes());
        assert_eq!(JobKey::from_hex(&text.to_uppercase()).expect("valid").bytes(), key.bytes());
    }

    #[test]
    fn what_is_no_key_is_refused_with_a_reason() {
        assert_eq!(JobKey::from_hex("abc").err(), Some(KeyError::NotHex { len: 3, hex: true }));
        let mut long = "0".repeat(63);
        long.push('x');
        assert_eq!(JobKey::from_hex(&long).err(), Some(KeyError::NotHex { len: 64, hex: false }));
        // 64 bytes, but fewer characters: no slice may fall inside one.
        let wide = "é".repeat(32);
        assert_eq!(JobKey::from_hex(&wide).err(), Some(KeyError::NotHex { len: 32, hex: false }));
        assert_eq!(JobKey::from_hex(&"ab".repeat(32)).err(), Some(KeyError::Weak));
        assert!(KeyError::NotHex { len: 3, hex: true }.to_string().contains("64 hexadecimal digits"));
    }

    #[test]
    fn a_bound_key_needs_both_parts() {
        let (job, other) = (JobKey::from_bytes([3; 32]), JobKey::from_bytes([4; 32]));
        let bound = job.bound_to(&[9; 32]);
        assert_eq!(bound.bytes(), job.bound_to(&[9; 32]).bytes());
        assert_ne!(bound.bytes(), other.bound_to(&[9; 32]).bytes());
        assert_ne!(bound.bytes(), job.bound_to(&[8; 32]).bytes());
    }

    #[test]
    fn debug_keeps_the_secret() {
        let key = JobKey::from_bytes([0xab; 32]);
        let text = format!("{key:?} {:?}", Auth::Key(key.clone()));
        assert!(!text.contains("ab") && !text.contains("171"), "{text}");
    }

    #[test]
    fn files_are_read_and_their_mode_is_looked_at() {
        let key = JobKey::generate().expect("random numbers");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "{}", key.to_hex()).expect("written");
        assert_eq!(JobKey::from_file(file.path()).expect("valid").bytes(), key.bytes());
        assert_eq!(exposed(file.as_file()), None);
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).expect("chmod");
        assert_eq!(exposed(file.as_file()), Some(0o644));
        let missing = JobKey::from_file("/nonexistent/key").expect_err("no file");
        assert!(missing.to_string().contains("/nonexistent/key"), "{missing}");
    }
}
