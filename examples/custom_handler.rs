//! Carries out intents without HTTP: each mail becomes a file in a spool folder.
//!
//! `cargo run --example custom_handler -- app.db spool`
//!
//! The file is named by the intent's key, so the folder deduplicates: a repeated attempt writes the
//! same file with the same bytes.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use sqlite_outbox::{
    Delivery, Downstream, Failure, Handler, Intent, Operation, Outbox, Outcome, Receipt, Relay,
};

struct Spool {
    folder: PathBuf,
}

impl Handler for Spool {
    fn deliver(&self, mail: &Delivery) -> Outcome {
        let name = format!("{}.json", mail.wire_key().replace(':', "-"));
        let draft = self.folder.join(format!("{name}.draft"));
        if let Err(error) = write(&draft, mail.payload()) {
            // Only the draft was touched, and drafts are not read: the mail did not go out.
            return Outcome::NotSent(Failure::new("spool", error.to_string()));
        }
        match fs::rename(&draft, self.folder.join(&name)) {
            Ok(()) => Outcome::Succeeded(Receipt::new().downstream_id(name)),
            // An error of the system call does not prove that the file is not there.
            Err(error) => Outcome::MaybeSent(Failure::new("spool", error.to_string())),
        }
    }

    /// An attempt on a local disk is short; the relay's lease must be longer.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(10)
    }
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [db, folder] = &words[..] else { return Err("usage: custom_handler DB FOLDER".into()) };
    fs::create_dir_all(folder)?;

    let outbox = Outbox::open(db)?;
    let mail = Intent::new("mail.send", "order-42").args(json!({"to": "ada@example.com"}));
    outbox.transact(|tx| outbox.enqueue(tx, &mail))?;

    // Files stay, so a key is remembered for longer than any intent is tried.
    let window = Duration::from_secs(365 * 24 * 3600);
    let spool = Spool { folder: folder.into() };
    let mails = Operation::new(Downstream::DeduplicatesByKey { window }, spool);
    let relay = Relay::builder(&outbox).operation("mail.send", mails).build()?;
    println!("{} succeeded", relay.drain()?.succeeded);
    Ok(())
}
