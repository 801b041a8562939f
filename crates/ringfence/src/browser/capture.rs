//! Screenshots of a page. Chromium itself scales and encodes them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::page::{HEIGHT, Page, WIDTH};
use crate::base::{Error, Kind, Result};

/// Maximum width and height of an image in pixels; encoders fail beyond it.
pub const LONGEST: f64 = 16_000.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Png,
    #[serde(alias = "jpg")]
    Jpeg,
    Webp,
}

impl Format {
    /// Returns the name of the format in the browser's protocol.
    pub fn name(self) -> &'static str {
        match self {
            Format::Png => "png",
            Format::Jpeg => "jpeg",
            Format::Webp => "webp",
        }
    }

    /// Returns the MIME type.
    pub fn mime(self) -> &'static str {
        match self {
            Format::Png => "image/png",
            Format::Jpeg => "image/jpeg",
            Format::Webp => "image/webp",
        }
    }

    /// Returns the format for a file name, by its extension.
    pub fn of_name(path: &str) -> Option<Format> {
        let (_, end) = path.rsplit('/').next()?.rsplit_once('.')?;
        match end.to_ascii_lowercase().as_str() {
            "png" => Some(Format::Png),
            "jpg" | "jpeg" => Some(Format::Jpeg),
            "webp" => Some(Format::Webp),
            _ => None,
        }
    }
}

/// Part of a page, in CSS pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Region {
    x: f64,
    y: f64,
    /// Width in CSS pixels.
    pub width: f64,
    /// Height in CSS pixels.
    pub height: f64,
    /// True if part of it may be outside the window.
    beyond: bool,
    /// True if it was cut to the maximum size of an image.
    pub cut: bool,
}

impl Region {
    const WINDOW: Region = Region {
        x: 0.0,
        y: 0.0,
        width: WIDTH as f64,
        height: HEIGHT as f64,
        beyond: false,
        cut: false,
    };

    /// Returns the scale, at most 1, at which the region fits.
    pub fn scale(&self, max_width: u32, max_height: u32) -> f64 {
        (f64::from(max_width) / self.width).min(f64::from(max_height) / self.height).min(1.0)
    }
}

impl Page {
    /// Returns the region to capture: the window, the whole page, or one element.
    pub async fn region(&self, full_page: bool, target: Option<&str>) -> Result<Region> {
        if !full_page && target.is_none() {
            return Ok(Region::WINDOW);
        }
        let (mut left, mut top, mut width, mut height);
        if let Some(target) = target {
            let element = self.find(target).await?;
            let unseen = || {
                Error::new(
                    Kind::Conflict,
                    "the element is not visible, so there is nothing to capture",
                )
                .reason("not_visible")
                .hint("Open what contains it, or choose another element from browser.snapshot.")
            };
            let _ = self
                .call("DOM.scrollIntoViewIfNeeded", json!({"backendNodeId": element.backend}))
                .await;
            let model =
                self.call("DOM.getBoxModel", json!({"backendNodeId": element.backend})).await;
            let model = model
                .map_err(|error| if error.kind() == Kind::Conflict { unseen() } else { error })?;
            let corner = |at: usize| model["model"]["border"][at].as_f64().unwrap_or(0.0);
            let (xs, ys) = (
                [corner(0), corner(2), corner(4), corner(6)],
                [corner(1), corner(3), corner(5), corner(7)],
            );
            let least = |all: [f64; 4]| all.into_iter().fold(f64::INFINITY, f64::min);
            let most = |all: [f64; 4]| all.into_iter().fold(f64::NEG_INFINITY, f64::max);
            let metrics = self.call("Page.getLayoutMetrics", json!({})).await?;
            let scrolled = |name: &str| metrics["cssVisualViewport"][name].as_f64().unwrap_or(0.0);
            (left, top) = (least(xs) + scrolled("pageX"), least(ys) + scrolled("pageY"));
            (width, height) = (most(xs) - least(xs), most(ys) - least(ys));
            if width < 1.0 || height < 1.0 {
                return Err(unseen());
            }
            left = left.max(0.0);
            top = top.max(0.0);
        } else {
            let metrics = self.call("Page.getLayoutMetrics", json!({})).await?;
            let size = |name: &str| metrics["cssContentSize"][name].as_f64().unwrap_or(0.0);
            (left, top) = (0.0, 0.0);
            (width, height) = (size("width").max(f64::from(WIDTH)), size("height").max(1.0));
        }
        let cut = width > LONGEST || height > LONGEST;
        (width, height) = (width.ceil().min(LONGEST), height.ceil().min(LONGEST));
        Ok(Region { x: left, y: top, width, height, beyond: true, cut })
    }

    /// Captures a region and returns the image as base64.
    pub async fn capture(
        &self,
        region: Region,
        scale: f64,
        format: Format,
        quality: u32,
    ) -> Result<String> {
        let mut params = json!({"format": format.name(), "captureBeyondViewport": region.beyond});
        if format != Format::Png {
            params["quality"] = json!(quality);
        }
        if region != Region::WINDOW || scale < 1.0 {
            let (x, y) = match region.beyond {
                true => (region.x, region.y),
                // The window starts where the page is scrolled to.
                false => self.scrolled().await?,
            };
            params["clip"] = json!({"x": x, "y": y, "width": region.width, "height": region.height, "scale": scale});
        }
        let mut answer = self.call("Page.captureScreenshot", params).await?;
        match answer["data"].take() {
            Value::String(data) if !data.is_empty() => Ok(data),
            _ => Err(Error::new(Kind::Unavailable, "the browser returned no image")
                .reason("browser_refused")
                .hint("Try again, or with a smaller part of the page.")),
        }
    }

    async fn scrolled(&self) -> Result<(f64, f64)> {
        let metrics = self.call("Page.getLayoutMetrics", json!({})).await?;
        let at = |name: &str| metrics["cssVisualViewport"][name].as_f64().unwrap_or(0.0);
        Ok((at("pageX"), at("pageY")))
    }
}

/// Returns the size stated in the header of a PNG.
pub fn png_size(data: &str) -> Option<(u32, u32)> {
    let head = STANDARD.decode(data.get(..32)?).ok()?;
    let number = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    Some((number(16)?, number(20)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_scaled_to_fit_both_ways() {
        let region = |width, height| Region { width, height, ..Region::WINDOW };
        assert_eq!(region(1280.0, 720.0).scale(1280, 1568), 1.0);
        assert_eq!(region(2560.0, 720.0).scale(1280, 1568), 0.5);
        assert_eq!(region(1280.0, 3136.0).scale(1280, 1568), 0.5);
        assert_eq!(region(100.0, 100.0).scale(1280, 1568), 1.0);
    }

    #[test]
    fn the_format_follows_the_name() {
        assert_eq!(Format::of_name("a/b.PNG"), Some(Format::Png));
        assert_eq!(Format::of_name("x.y/shot.jpg"), Some(Format::Jpeg));
        assert_eq!(Format::of_name("x.webp/shot"), None);
    }
}
