//! The 16 clear bytes that open the stream: enough to say why two ends cannot talk.

use super::error::{BootstrapError, Seen};
use super::handshake::Role;
use super::key::AuthMode;
use super::{VERSION_MAX, VERSION_MIN};

/// Size in bytes.
pub(super) const LEN: usize = 16;

/// First byte no text protocol begins with; a line end that a text-mode transfer would change.
const MAGIC: [u8; 8] = *b"\x8fSPRAY\r\n";

/// What an end says before anything is encrypted. Bound into the key exchange afterwards, so a change on the
/// way shows there.
///
/// Layout, little-endian: magic 8, oldest version u16, newest version u16, authentication u8 (0 insecure,
/// 1 job key), role u8 (0 initiator, 1 responder), zero u16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Preamble {
    pub(super) versions: (u16, u16),
    pub(super) auth: AuthMode,
    pub(super) role: Role,
}

impl Preamble {
    pub(super) fn ours(auth: AuthMode, role: Role) -> Preamble {
        Preamble { versions: (VERSION_MIN, VERSION_MAX), auth, role }
    }

    pub(super) fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.versions.0.to_le_bytes());
        out[10..12].copy_from_slice(&self.versions.1.to_le_bytes());
        out[12] = match self.auth {
            AuthMode::Insecure => 0,
            AuthMode::JobKey => 1,
        };
        out[13] = match self.role {
            Role::Initiator => 0,
            Role::Responder => 1,
        };
        out
    }

    /// Reads a whole preamble. The last two bytes are for later versions and are not looked at.
    pub(super) fn parse(bytes: &[u8; LEN]) -> Result<Preamble, BootstrapError> {
        check_magic(bytes)?;
        let versions = (u16::from_le_bytes([bytes[8], bytes[9]]), u16::from_le_bytes([bytes[10], bytes[11]]));
        if versions.0 > versions.1 {
            return Err(BootstrapError::Malformed { what: "a version range that ends before it begins" });
        }
        let auth = match bytes[12] {
            0 => AuthMode::Insecure,
            1 => AuthMode::JobKey,
            _ => return Err(BootstrapError::Malformed { what: "an unknown authentication mode" }),
        };
        let role = match bytes[13] {
            0 => Role::Initiator,
            1 => Role::Responder,
            _ => return Err(BootstrapError::Malformed { what: "an unknown role" }),
        };
        Ok(Preamble { versions, auth, role })
    }

    /// The newest version that both speak.
    pub(super) fn agree(&self, theirs: &Preamble) -> Result<u16, BootstrapError> {
        let newest = self.versions.1.min(theirs.versions.1);
        if newest < self.versions.0.max(theirs.versions.0) {
            return Err(BootstrapError::VersionMismatch { ours: self.versions, theirs: theirs.versions });
        }
        if self.role == theirs.role {
            return Err(BootstrapError::SameRole { role: self.role.name() });
        }
        if self.auth != theirs.auth {
            return Err(BootstrapError::AuthModeMismatch { ours: self.auth, theirs: theirs.auth });
        }
        Ok(newest)
    }
}

/// Fails as soon as the bytes so far cannot become a preamble.
pub(super) fn check_magic(bytes: &[u8]) -> Result<(), BootstrapError> {
    let n = bytes.len().min(MAGIC.len());
    if bytes[..n] != MAGIC[..n] {
        return Err(BootstrapError::NotPlanespray(Seen::new(bytes)));
    }
    Ok(())
}
