//! Cgroups of a lab: one for each machine in every hierarchy of the real one, since two kubelets on the same root would each
//! remove the other's pods.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// What the name of a lab's cgroup begins with; the process id of who made it follows.
const PREFIX: &str = "muster-lab-";
/// Longest time until a cgroup whose processes have just died can be removed.
const LIMIT: Duration = Duration::from_secs(10);

/// The cgroups of one lab.
#[derive(Clone, Debug)]
pub struct Cgroups {
    name: String,
    hierarchies: Vec<PathBuf>,
}

impl Cgroups {
    /// Those of the lab that this process makes.
    pub fn of(process: u32) -> Result<Self> {
        Ok(Self {
            name: format!("{PREFIX}{process}"),
            hierarchies: hierarchies()?,
        })
    }

    /// Makes the cgroup of a machine in every hierarchy.
    pub fn make(&self, machine: &str) -> Result<Vec<PathBuf>> {
        let mut made = Vec::new();
        for hierarchy in &self.hierarchies {
            let lab = hierarchy.join(&self.name);
            let own = lab.join(machine);
            fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
            // Nothing may run in a set of no processors.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if hierarchy.join(file).exists() {
                    let all = fs::read_to_string(hierarchy.join(file))?;
                    fs::write(lab.join(file), &all)?;
                    fs::write(own.join(file), &all)?;
                }
            }
            made.push(own);
        }
        Ok(made)
    }

    /// Removes them. Their processes are dead, or dying.
    pub fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + LIMIT;
        for hierarchy in &self.hierarchies {
            let lab = hierarchy.join(&self.name);
            while let Err(error) = remove_all(&lab) {
                if Instant::now() >= deadline {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

/// Removes what labs left whose process is gone: they were killed before they could.
pub fn remove_abandoned() -> Result<()> {
    for hierarchy in hierarchies()? {
        for entry in fs::read_dir(&hierarchy)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let process = name.strip_prefix(PREFIX);
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                // One that still has processes cannot be removed, and is somebody else's business.
                let _ = remove_all(&entry.path());
            }
        }
    }
    Ok(())
}

/// Why there cannot be any, if so.
pub fn missing() -> Option<String> {
    match hierarchies() {
        Ok(found) if !found.is_empty() => None,
        _ => Some(format!(
            "{ROOT} has no hierarchies of cgroup v1, and machines of a lab were never tried with v2"
        )),
    }
}

/// The hierarchies of version 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(ROOT)?.flatten() {
        let path = entry.path();
        // A hierarchy of version 2 beside them has no controllers, and no `tasks`. Names of pairs are links.
        if path.join("tasks").exists() && !entry.file_type()?.is_symlink() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Deepest first: a cgroup with others in it stays.
fn remove_all(cgroup: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(cgroup) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        if entry.file_type()?.is_dir() {
            remove_all(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}
