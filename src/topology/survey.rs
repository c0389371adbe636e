//! Everything that decides which devices are used, in one go: variables, files, and the choice.

use std::path::{Path, PathBuf};

use super::choice::{Choice, Request, Wanted, choose};
use super::file::{FileError, TopologyFile};
use super::gid::{GidPolicy, PolicyError};
use super::hca::{DecidedBy, HcaDecision, HcaError, decide};
use super::host::{Host, Library};
use super::reason::Reason;
use super::sysfs::{Device, ScanError, scan};
use super::{Lookup, first_set};

/// Names the topology file.
const TOPOLOGY: &str = "PLANESPRAY_TOPOLOGY";
/// Memory that a process pins at least: control slots of a few sessions and some buffers.
const MEMORY: u64 = 64 << 20;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Where the tree of files begins: `/`.
    pub root: &'a Path,
    /// Which engine.
    pub wanted: Wanted,
    /// A list of HCAs that counts before every variable.
    pub list: Option<&'a str>,
    /// Bytes of memory that will be registered; at least 64 MiB are counted.
    pub memory: u64,
}

/// What was found, and chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Survey {
    /// The devices.
    pub devices: Vec<Device>,
    /// What the host allows.
    pub host: Host,
    /// The list of HCAs, if there is one, and what it came from.
    pub hca: Option<HcaDecision>,
    /// Which GIDs are wanted.
    pub gids: GidPolicy,
    /// The variables that said so.
    pub gid_variables: Vec<&'static str>,
    /// The topology file, if there is one.
    pub topology: Option<PathBuf>,
    /// The choice; only if verbs are asked for it can fail.
    pub choice: Result<Choice, Vec<Reason>>,
}

/// Why there is no answer: something that the user said is wrong, or the devices cannot be listed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// The list of HCAs.
    #[error("{by}: {error}")]
    Hca {
        /// Where it came from.
        by: DecidedBy,
        /// What is wrong with it.
        #[source]
        error: HcaError,
    },
    /// A variable for GIDs.
    #[error(transparent)]
    Gid(#[from] PolicyError),
    /// The topology file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel's files.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

/// Reads what there is below `question.root` and what the variables say, and chooses.
///
/// # Errors
/// [`SurveyError`]; that nothing can be used is none.
pub fn survey(question: &Question<'_>, library: Library, lookup: Lookup<'_>) -> Result<Survey, SurveyError> {
    let hca = decide(question.list, lookup).map_err(|(by, error)| SurveyError::Hca { by, error })?;
    let (gids, gid_variables) = GidPolicy::from_variables(lookup)?;
    let path = first_set(lookup, &[TOPOLOGY]).map(|(_, path)| PathBuf::from(path));
    let file = path.as_deref().map(TopologyFile::read).transpose()?;
    let devices = scan(question.root)?;
    let host = Host::read(question.root, library, &devices);
    let request = Request {
        wanted: question.wanted,
        list: hca.as_ref().map(|h| &h.list),
        gids,
        topology: file.as_ref(),
        memory: question.memory.max(MEMORY),
    };
    let choice = choose(&devices, &host, &request);
    Ok(Survey { devices, host, hca, gids, gid_variables, topology: path, choice })
}
