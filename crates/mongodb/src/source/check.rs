//! What `check` finds out before a stream runs.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use watchkeeper_core::source::Severity;
use watchkeeper_core::{Cx, ErrorKind, Finding, Result};

use super::pipeline::keeps_positions;
use super::view::{Before, Scope, Shown};
use super::{CollectionKind, Feed};
use crate::check::{Privileges, finding, servers};
use crate::error::{CallPurpose, Class};

/// Below this length of history a stream that stops over a night may not go on.
const WINDOW_SHORT: Duration = Duration::from_secs(24 * 3_600);

impl Feed {
    pub(super) async fn findings(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let mut found = self.of_versions(cx).await?;
        found.extend(servers(cx, &self.client).await?);
        let lacking = self.of_privileges(cx).await?;
        let privileges_are_named = !lacking.is_empty();
        found.extend(lacking);
        found.extend(self.of_collections(cx).await?);
        found.extend(self.of_the_oplog(cx).await?);
        found.extend(self.of_the_pipeline());
        found.extend(self.of_opening(cx, privileges_are_named).await?);
        Ok(found)
    }

    /// What this server is too old for.
    async fn of_versions(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let info = self.ask(cx, "admin", doc! { "buildInfo": 1 }).await?;
        let version = info.get_str("version").unwrap_or("0").to_owned();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok()).unwrap_or(0);
        let view = &self.view;
        let stored = matches!(view.full_document, Shown::WhenAvailable | Shown::Required);
        let images = stored || view.full_document_before_change != Before::Off;
        let mut found = Vec::new();
        if major < 5 {
            let what = format!("the server is of version {version}; nothing before 5.0 is supported");
            found.push(finding(Severity::Error, what, "upgrade the server"));
        }
        for (used, what) in [(images, "stored images"), (view.show_expanded_events, "show_expanded_events")] {
            if used && major < 6 {
                let what = format!("{what} need a server of version 6.0, and this is {version}");
                found.push(finding(Severity::Error, what, "leave it out, or upgrade the server"));
            }
        }
        Ok(found)
    }

    /// What this user may not do, one by one.
    async fn of_privileges(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let Some(own) = Privileges::of(cx, &self.client).await? else { return Ok(Vec::new()) };
        let resources = self.resources();
        let places: Vec<_> = resources.iter().map(|(database, collection)| (&**database, &**collection)).collect();
        let remedy = match self.view.scope {
            Scope::Cluster => "grant it, for example by the role readAnyDatabase on the database admin",
            _ => "grant it, for example by the role read",
        };
        Ok(own.missing(&places, &["changeStream", "find"], remedy))
    }

    /// What has to be readable. An empty name stands for all.
    fn resources(&self) -> Vec<(String, String)> {
        let database = self.client.config().database().to_owned();
        match &self.view.scope {
            Scope::Cluster => vec![(String::new(), String::new())],
            Scope::Collections(names) if names.len() == 1 => vec![(database, names[0].clone())],
            // Several are picked out of a stream on the whole database.
            Scope::Database | Scope::Collections(_) => vec![(database, String::new())],
        }
    }

    /// Collections that are not there, or do not store the images that are asked for.
    async fn of_collections(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        let Scope::Collections(names) = &self.view.scope else { return Ok(found) };
        let view = &self.view;
        let required = view.full_document == Shown::Required || view.full_document_before_change == Before::Required;
        let wanted = required
            || view.full_document == Shown::WhenAvailable
            || view.full_document_before_change == Before::WhenAvailable;
        for name in names {
            let list = doc! { "listCollections": 1, "filter": { "name": name } };
            match self.first(cx, self.client.config().database(), list).await {
                Ok(Some(collection)) if CollectionKind::of(&collection).is_unwatchable() => {
                    found.push(unwatchable(name, CollectionKind::of(&collection)));
                }
                Ok(Some(collection)) if wanted && !stores_images(&collection) => {
                    let severity = if required { Severity::Error } else { Severity::Warning };
                    let remedy = format!("run: watchkeeper mongodb setup --images --collection {name} --url …");
                    found.push(finding(severity, format!("{name} stores no images, which are asked for"), remedy));
                }
                Ok(None) if !view.wait => found.push(missing(name)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Denied => {
                    // Whoever may not read it does not see it, and is told which privilege is missing.
                    match self.kind_of(cx, name).await? {
                        Some(kind) if kind.is_unwatchable() => found.push(unwatchable(name, kind)),
                        None if !view.wait && self.try_open(cx).await.is_ok() => found.push(missing(name)),
                        _ => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Whether the server takes the stream as it is described.
    async fn of_opening(&self, cx: &Cx, privileges_are_named: bool) -> Result<Option<Finding>> {
        let opened = match keeps_positions(&self.view.pipeline) {
            Ok(()) => self.try_open(cx).await,
            refused => refused,
        };
        match opened {
            Ok(()) => Ok(None),
            // The privileges that are missing were named one by one.
            Err(error) if error.kind() == ErrorKind::Denied && privileges_are_named => Ok(None),
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
            Err(error) => {
                let remedy = error.advice().unwrap_or("look at the cause").to_owned();
                Ok(Some(finding(Severity::Error, error.message(), remedy)))
            }
        }
    }

    async fn of_the_oplog(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let Some(length) = self.history(cx).await?.length() else {
            let what = "this user may not read the oplog: neither its window nor a restored backup can be recognised";
            return Ok(vec![finding(Severity::Warning, what, "grant the role read on the database local")]);
        };
        if length >= WINDOW_SHORT {
            return Ok(Vec::new());
        }
        let back = humantime::format_duration(Duration::from_secs(length.as_secs()));
        let what = format!("the oplog reaches back {back}: a stream that stops for longer loses changes");
        Ok(vec![finding(Severity::Warning, what, "enlarge it, or set storage.oplogMinRetentionHours")])
    }

    /// Conditions on the whole document, which an update does not always show.
    fn of_the_pipeline(&self) -> Vec<Finding> {
        let conditions = self.view.pipeline.iter().filter_map(|stage| stage.get("$match"));
        if !conditions.into_iter().any(|condition| mentions(condition, "fullDocument")) {
            return Vec::new();
        }
        let (what, remedy) = match self.view.full_document {
            Shown::Default => (
                "a $match on fullDocument never sees updates",
                "write full_document = \"whenAvailable\" or \"updateLookup\"",
            ),
            Shown::UpdateLookup => (
                "a $match on fullDocument is applied to the document as it is when read, so an event may be hidden later",
                "write full_document = \"whenAvailable\", which shows the document as it was",
            ),
            Shown::WhenAvailable | Shown::Required => return Vec::new(),
        };
        vec![finding(Severity::Warning, what, remedy)]
    }
}

fn missing(name: &str) -> Finding {
    let remedy = "create it, correct its name, or write wait = true";
    finding(Severity::Error, format!("there is no collection {name:?}"), remedy)
}

/// Of several collections the server would just send nothing of this one.
fn unwatchable(name: &str, kind: CollectionKind) -> Finding {
    let (cause, remedy) = Class::Unwatchable.words(CallPurpose::Watching);
    finding(Severity::Error, format!("{name} is {}: {cause}", kind.name()), remedy)
}

fn stores_images(collection: &Document) -> bool {
    let options =
        collection.get_document("options").and_then(|options| options.get_document("changeStreamPreAndPostImages"));
    options.and_then(|images| images.get_bool("enabled")).unwrap_or(false)
}

/// Whether a condition is about this field, at whatever depth.
pub(crate) fn mentions(condition: &Bson, field: &str) -> bool {
    let is_field = |name: &str| name == field || name.starts_with(&format!("{field}."));
    match condition {
        Bson::Document(parts) => parts.iter().any(|(name, part)| is_field(name) || mentions(part, field)),
        Bson::Array(parts) => parts.iter().any(|part| mentions(part, field)),
        Bson::String(text) => text.strip_prefix('$').is_some_and(is_field),
        _ => false,
    }
}
