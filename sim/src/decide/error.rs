//! Why nothing was decided.

use std::path::PathBuf;

/// Why nothing was decided.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {cause}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A file is neither YAML nor JSON.
    #[error("{file}: {cause}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, column, and what is wrong there.
        cause: String,
    },
    /// A field is missing or has a value that its type does not allow.
    #[error("{document}: {field}: {cause}")]
    Field {
        /// File, number of the document in it, and the object.
        document: String,
        /// Path of the field.
        field: String,
        /// What is wrong, and what would work.
        cause: String,
    },
    /// The same object is given twice.
    #[error("{document}: {object} stands in {first} already; leave one of them out")]
    Twice {
        /// Where it stands again.
        document: String,
        /// The object.
        object: String,
        /// Where it stands first.
        first: String,
    },
    /// A Job asks for more pods than are made up.
    #[error(
        "Job {job}: spec.parallelism: the Jobs together have more than {most} pods; give fewer or smaller Jobs"
    )]
    TooManyPods {
        /// `namespace/name` of the Job at which the limit is passed.
        job: String,
        /// Most pods that are made up.
        most: usize,
    },
    /// The controller would exit.
    #[error("the controller would exit: {0}")]
    Exit(String),
    /// The machine still has something to do after a very long time: a bug of Muster.
    #[error(
        "the decisions do not come to rest within {0} rounds; please report this with the files"
    )]
    Restless(u64),
}
