//! Leader election for those who have no stream: `cargo run -p watchkeeper --example election`, in two terminals.

use std::path::Path;
use std::time::Duration;

use watchkeeper::{Campaign, Epoch, LeaseKey, LeaseSettings, Result, Seams, open};

/// Stands for the office of the nightly report until it is won, writes the report, and resigns.
pub async fn run(folder: &Path, name: &str) -> Result<Epoch> {
    let stores = open::stores(&format!("sqlite:{}", folder.join("state.db").display())).await?;
    let settings = LeaseSettings::new(Duration::from_secs(5));
    let key = LeaseKey::new("nightly-report");
    let campaign = Campaign::new(Seams::system(), stores.leases, settings, key, name).await?;

    // Waits while another candidate has the office.
    let term = campaign.win().await;
    let epoch = term.epoch();
    tokio::select! {
        biased;
        loss = term.lost() => println!("{name}: {loss}; the report is left to the next leader"),
        written = write_report(folder, name, epoch) => {
            written?;
            term.resign().await?;
        }
    }
    Ok(epoch)
}

/// The epoch is the fencing token: a leader that was paused, and wakes up too late, has a lower one than the report that
/// is there, and must not replace it. A database would check this in one statement.
async fn write_report(folder: &Path, name: &str, epoch: Epoch) -> Result<()> {
    let unwritten = |error| watchkeeper::Error::unavailable("the report was not written").caused_by(error);
    let path = folder.join("report.txt");
    let newest = std::fs::read_to_string(&path).ok().and_then(|text| text.split(' ').next()?.parse().ok());
    if newest.is_none_or(|newest: u64| newest < epoch.0) {
        std::fs::write(&path, format!("{epoch} written by {name}")).map_err(unwritten)?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("watchkeeper-election");
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let name = format!("candidate {}", std::process::id());
    run(&folder, &name).await.map(|epoch| println!("{name} was the leader of epoch {epoch}"))
}
