//! What is this program's own: `check`, `explain`, `serve`.

use crate::cli::Options;
use crate::{explain, serve};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Parser)]
#[command(
    name = "forebay",
    version,
    about = "A web server that runs nginx.conf. Without a subcommand: nginx's options, see -h."
)]
struct Line {
    #[command(subcommand)]
    command: Wish,
}

#[derive(Subcommand)]
enum Wish {
    /// Show each effective setting and where it comes from
    Explain(Where),
    /// Serve a folder, or the demo site, without a configuration
    Serve(ServeArgs),
}

/// Which configuration.
#[derive(Args)]
struct Where {
    /// Configuration file
    #[arg(short = 'c', value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Prefix of relative paths
    #[arg(short = 'p', value_name = "DIR")]
    prefix: Option<String>,
    /// Directives before those of the file
    #[arg(short = 'g', value_name = "DIRECTIVES")]
    globals: Option<String>,
}

/// `forebay serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Folder to serve; the built-in demo site when left out
    pub dir: Option<PathBuf>,
    /// Address or port
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Print the nginx.conf that would be run, and end
    #[arg(long)]
    pub print_config: bool,
}

/// Runs a subcommand; gives the exit code.
pub fn main(arguments: Vec<OsString>, titled: bool) -> u8 {
    let line = match Line::try_parse_from(&arguments) {
        Ok(line) => line,
        Err(e) => {
            let _ = e.print();
            return u8::from(e.use_stderr());
        }
    };
    match line.command {
        Wish::Explain(place) => explain::main(&place.options()),
        Wish::Serve(args) => serve::main(&args, arguments, titled),
    }
}

impl Where {
    fn options(self) -> Options {
        // People name files from where they are; only -p makes a name relative to the prefix.
        let conf = self.conf.map(|path| match self.prefix {
            None => std::path::absolute(&path).unwrap_or(path),
            Some(_) => path,
        });
        Options {
            conf: conf.map(|path| path.to_string_lossy().into_owned()),
            prefix: self.prefix,
            globals: self.globals,
            ..Options::default()
        }
    }
}
