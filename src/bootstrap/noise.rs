//! The key exchange: Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s.

use snow::params::{HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};

use super::error::BootstrapError;
use super::handshake::Role;
use super::key::{self, Auth};
use super::preamble;

/// Size of each of the two Noise messages: an ephemeral key and the tag of an empty payload.
pub(super) const MESSAGE: usize = 48;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const LABEL: &[u8] = b"planespray bootstrap psk v1";

/// The exchange of one end, with both preambles bound in.
pub(super) fn start(
    role: Role,
    auth: &Auth,
    initiator: &[u8; preamble::LEN],
    responder: &[u8; preamble::LEN],
) -> Result<Box<HandshakeState>, BootstrapError> {
    let fail = |_| BootstrapError::Crypto { what: "setting up the key exchange" };
    let params: NoiseParams = PATTERN.parse().map_err(fail)?;
    let mut psk = psk(auth)?;
    let mut prologue = [0; 2 * preamble::LEN];
    prologue[..preamble::LEN].copy_from_slice(initiator);
    prologue[preamble::LEN..].copy_from_slice(responder);
    let builder = Builder::new(params).psk(0, &psk).and_then(|b| b.prologue(&prologue)).map_err(fail)?;
    let state = match role {
        Role::Initiator => builder.build_initiator(),
        Role::Responder => builder.build_responder(),
    };
    key::wipe(&mut psk);
    state.map(Box::new).map_err(fail)
}

/// The pre-shared key: a keyed hash of the label, so that the job key itself is never used for two things.
/// Without a job key it is a constant that everybody knows.
fn psk(auth: &Auth) -> Result<[u8; 32], BootstrapError> {
    const PUBLIC: [u8; 32] = *b"planespray insecure: no secrets!";
    let key = match auth {
        Auth::Key(key) => key.bytes(),
        Auth::Insecure => &PUBLIC,
    };
    let mut hash = DefaultResolver
        .resolve_hash(&HashChoice::Blake2s)
        .ok_or(BootstrapError::Crypto { what: "setting up the hash" })?;
    let mut psk = [0; 32];
    hash.hmac(key, LABEL, &mut psk);
    Ok(psk)
}
