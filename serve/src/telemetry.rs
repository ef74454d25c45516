//! Structured logs on standard error. Standard output belongs to what a program is asked to print.

use tracing_subscriber::{EnvFilter, filter::ParseError, util::SubscriberInitExt};

use crate::args::LogFormat;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `--log-level` is not a filter.
    #[error(
        "--log-level {filter:?} is no log filter (try \"info\" or \"info,muster=debug\"): {source}"
    )]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Another subscriber is installed in this process already.
    #[error("logging is set up already: {0}")]
    Installed(#[from] tracing_subscriber::util::TryInitError),
}

/// Installs the process-wide log subscriber. Once per process.
pub fn install(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let env_filter = EnvFilter::try_new(filter).map_err(|source| TelemetryError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let records = tracing_subscriber::fmt()
        .with_env_filter(env_filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Json => records.json().flatten_event(true).finish().try_init()?,
        LogFormat::Text => records.with_ansi(false).finish().try_init()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_says_what_would_be() {
        let error = install("info=shout=loud", LogFormat::Text).unwrap_err();
        assert!(error.to_string().contains("try \"info\""), "{error}");
    }
}
