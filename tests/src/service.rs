//! A program that runs as long as its cluster, and can be killed, stopped, frozen and started alone.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{
    http_get,
    kubernetes::{LIMIT, Progress, eventually},
    process::{Launch, Process},
};

/// Longest time between SIGTERM and SIGKILL. Everything ends within a second where all is well.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How a program says that it is ready.
#[derive(Clone, Debug)]
pub enum Probe {
    /// It answers a GET of this URL and path with success.
    Http(String, &'static str),
    /// Its socket is there.
    Socket(PathBuf),
    /// It says nothing; what it does shows it.
    None,
}

/// A program of a cluster, whether it runs or not.
#[derive(Debug)]
pub struct Service {
    launch: Launch,
    logs: PathBuf,
    probe: Probe,
    process: Option<Process>,
}

impl Service {
    /// A program that does not run yet; it writes its log into `logs`.
    pub fn new(launch: Launch, logs: impl Into<PathBuf>, probe: Probe) -> Self {
        Self {
            launch,
            logs: logs.into(),
            probe,
            process: None,
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// The process id of the running program.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Whether it was started, and neither stopped nor killed since.
    pub fn is_started(&self) -> bool {
        self.process.is_some()
    }

    /// Whether it was started and has not ended since, by itself or otherwise.
    pub fn runs(&mut self) -> Result<bool> {
        match &mut self.process {
            Some(process) => Ok(process.exit_status()?.is_none()),
            None => Ok(false),
        }
    }

    /// Starts it and waits until it is ready.
    pub async fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_until_ready().await
    }

    /// Starts it and does not wait.
    pub fn spawn(&mut self) -> Result<()> {
        let launch = self.launch.clone();
        self.spawn_as(&launch)
    }

    /// Starts it once with another environment variable, and does not wait.
    pub fn spawn_with_env(&mut self, name: &str, value: &str) -> Result<()> {
        self.spawn_with_variables(&[(name, value)])
    }

    /// Starts it once with other environment variables, and does not wait.
    pub fn spawn_with_variables(&mut self, variables: &[(&str, &str)]) -> Result<()> {
        let own = self.launch.clone();
        let launch = variables
            .iter()
            .fold(own, |launch, (name, value)| launch.env(*name, *value));
        self.spawn_as(&launch)
    }

    /// Starts it once with some of its arguments exchanged, and does not wait; an error if it has not one of them.
    pub fn spawn_with_arguments(&mut self, exchanged: &[(&str, &str)]) -> Result<()> {
        let mut launch = self.launch.clone();
        for (from, to) in exchanged {
            let mut arguments = launch.arguments.iter_mut();
            let argument = arguments.find(|argument| argument.as_os_str() == *from);
            let argument = argument.with_context(|| format!("{} has no {from}", launch.name))?;
            *argument = to.into();
        }
        self.spawn_as(&launch)
    }

    /// Waits until it says that it is ready, or fails with the end of its log once it has ended.
    pub async fn wait_until_ready(&mut self) -> Result<()> {
        let name = self.name().to_owned();
        let process = self.process.as_mut();
        let process = process.with_context(|| format!("{name} is not started"))?;
        let probe = &self.probe;
        let what = format!("{name} is ready ({probe:?})");
        eventually(&what, LIMIT, async || {
            if let Err(ended) = process.ensure_running() {
                return Ok(Progress::Never(ended));
            }
            match probe {
                Probe::Http(url, path) => http_get::get(url, path).await.map(drop)?,
                Probe::Socket(path) if !path.exists() => {
                    return Ok(Progress::NotYet(format!("there is no {}", path.display())));
                }
                Probe::Socket(_) | Probe::None => {}
            }
            Ok(Progress::Done(()))
        })
        .await
    }

    /// SIGTERM, and SIGKILL if that is ignored. Never fails: what is gone is gone.
    pub async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            // A frozen process does not see the signal before it goes on.
            process.thaw();
            process.stop(STOP_LIMIT).await;
        }
        self.forget_socket();
    }

    /// SIGKILL: a crash.
    pub fn kill(&mut self) {
        drop(self.process.take());
        self.forget_socket();
    }

    /// SIGSTOP: it hangs, and keeps its memory and its connections.
    pub fn freeze(&self) {
        if let Some(process) = &self.process {
            process.freeze();
        }
    }

    /// SIGCONT: it goes on where it hung.
    pub fn thaw(&self) {
        if let Some(process) = &self.process {
            process.thaw();
        }
    }

    /// Fails with the end of its log if it was started and has ended by itself.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.process
            .as_mut()
            .map_or(Ok(()), Process::ensure_running)
    }

    /// Waits until it has ended by itself.
    pub async fn wait_until_ended(&mut self) -> Result<()> {
        let name = self.name().to_owned();
        let process = self.process.as_mut();
        let process = process.with_context(|| format!("{name} is not started"))?;
        eventually(&format!("{name} ends"), LIMIT, async || {
            let ended = process.exit_status()?;
            Ok(Progress::when(ended.is_some(), || "it runs".to_owned()))
        })
        .await?;
        self.process = None;
        Ok(())
    }

    fn spawn_as(&mut self, launch: &Launch) -> Result<()> {
        if let Some(process) = &mut self.process {
            let has_ended = process.exit_status()?.is_some();
            ensure!(has_ended, "{} runs already", launch.name);
        }
        self.process = Some(launch.start(&self.logs)?);
        Ok(())
    }

    /// A socket that is left behind would say that the next process is ready.
    fn forget_socket(&self) {
        if let Probe::Socket(path) = &self.probe {
            // It is not there if the program has removed it itself.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> (tempfile::TempDir, Service) {
        let logs = tempfile::tempdir().unwrap();
        let launch = Launch::new("sleeper", "sleep").arg("600");
        let service = Service::new(launch, logs.path(), Probe::None);
        (logs, service)
    }

    /// The state letter of `/proc/PID/stat`, behind the name in parentheses.
    fn state(service: &Service) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", service.id()?)).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    #[tokio::test]
    async fn a_frozen_program_stays_and_goes_on() {
        let (_logs, mut service) = sleeper();
        service.start().await.unwrap();
        service.freeze();
        let frozen = async || Ok(Progress::when(state(&service) == Some('T'), String::new));
        eventually("it is frozen", LIMIT, frozen).await.unwrap();
        service.ensure_running().unwrap();
        service.thaw();
        let thawed = async || Ok(Progress::when(state(&service) == Some('S'), String::new));
        eventually("it sleeps again", LIMIT, thawed).await.unwrap();
        service.freeze();
        service.stop().await;
        assert!(!service.is_started());
    }

    #[tokio::test]
    async fn a_program_that_was_killed_is_started_again_and_one_that_runs_is_not() {
        let (_logs, mut service) = sleeper();
        service.start().await.unwrap();
        let first = service.id();
        assert!(service.spawn().is_err(), "it runs already");
        service.kill();
        service.ensure_running().unwrap();
        service.start().await.unwrap();
        assert_ne!(first, service.id());
    }

    #[tokio::test]
    async fn a_program_is_started_once_with_another_argument_and_then_as_it_was() {
        let (_logs, mut service) = sleeper();
        let said = |service: &Service| {
            let file = format!("/proc/{}/cmdline", service.id().unwrap());
            std::fs::read_to_string(file).unwrap_or_default()
        };
        let refused = service.spawn_with_arguments(&[("700", "800")]);
        assert!(refused.unwrap_err().to_string().contains("has no 700"));
        for (exchanged, expected) in [
            (&[("600", "700")][..], "sleep\x00700"),
            (&[], "sleep\x00600"),
        ] {
            service.spawn_with_arguments(exchanged).unwrap();
            let runs = async || {
                let line = said(&service);
                Ok(Progress::when(line.contains(expected), || line.clone()))
            };
            eventually("it runs", LIMIT, runs).await.unwrap();
            service.stop().await;
        }
    }

    #[tokio::test]
    async fn a_program_that_ends_by_itself_is_missed() {
        let logs = tempfile::tempdir().unwrap();
        let launch = Launch::new("brief", "true");
        let mut service = Service::new(launch, logs.path(), Probe::None);
        service.spawn().unwrap();
        eventually("it is missed", LIMIT, async || {
            Ok(Progress::when(service.ensure_running().is_err(), || {
                "it runs".to_owned()
            }))
        })
        .await
        .unwrap();
        service.wait_until_ended().await.unwrap();
        service.ensure_running().unwrap();
    }
}
