//! Screenshots of a page. Chromium itself scales and encodes them.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::page::{BrowserPage, WINDOW_HEIGHT, WINDOW_WIDTH};
use crate::base::{Error, Kind, Result};

/// Maximum width and height of an image in pixels; encoders fail beyond it.
pub const MAX_IMAGE_SIDE: f64 = 16_000.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    Png,
    #[serde(alias = "jpg")]
    Jpeg,
    Webp,
}

impl ImageFormat {
    /// Returns the name of the format in the browser's protocol.
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Png => "png",
            ImageFormat::Jpeg => "jpeg",
            ImageFormat::Webp => "webp",
        }
    }

    /// Returns the MIME type.
    pub fn mime_type(self) -> &'static str {
        match self {
            ImageFormat::Png => "image/png",
            ImageFormat::Jpeg => "image/jpeg",
            ImageFormat::Webp => "image/webp",
        }
    }

    /// Returns the format for a file name, by its extension; `None` if it has none. Fails if no
    /// format has that extension, because the file's name would be wrong about its content.
    pub fn from_file_name(path: &str) -> Result<Option<ImageFormat>> {
        let extension = Path::new(path).extension().unwrap_or_default().to_string_lossy();
        match extension.to_ascii_lowercase().as_str() {
            "" => Ok(None),
            "png" => Ok(Some(ImageFormat::Png)),
            "jpg" | "jpeg" => Ok(Some(ImageFormat::Jpeg)),
            "webp" => Ok(Some(ImageFormat::Webp)),
            _ => {
                let shown: String =
                    extension.chars().take(32).flat_map(char::escape_debug).collect();
                Err(Error::invalid_arguments(format!(
                    "a screenshot cannot be written as `.{shown}`"
                ))
                .with_hint("Give the file a name that ends in .png, .jpg, .jpeg or .webp.")
                .with_fact("argument", "path"))
            }
        }
    }
}

/// How an image is encoded.
#[derive(Debug, Clone, Copy)]
pub struct ImageEncoding {
    pub format: ImageFormat,
    /// 1 to 100, not for PNG.
    pub quality: u32,
    /// Compress a PNG less: it takes a fraction of the time, and a third more bytes.
    pub is_fast: bool,
}

/// Part of a page, in CSS pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CaptureRegion {
    x: f64,
    y: f64,
    /// Width in CSS pixels.
    pub width: f64,
    /// Height in CSS pixels.
    pub height: f64,
    /// True if part of it may be outside the window.
    beyond_viewport: bool,
    /// True if it was cut to the maximum size of an image.
    pub truncated: bool,
}

impl CaptureRegion {
    const WINDOW: CaptureRegion = CaptureRegion {
        x: 0.0,
        y: 0.0,
        width: WINDOW_WIDTH as f64,
        height: WINDOW_HEIGHT as f64,
        beyond_viewport: false,
        truncated: false,
    };

    /// Returns the scale, at most 1, at which the region fits.
    pub fn scale_to_fit(&self, max_width: u32, max_height: u32) -> f64 {
        (f64::from(max_width) / self.width).min(f64::from(max_height) / self.height).min(1.0)
    }
}

impl BrowserPage {
    /// Returns the region to capture: the window, the whole page, or one element.
    pub async fn capture_region(
        &self,
        full_page: bool,
        target: Option<&str>,
    ) -> Result<CaptureRegion> {
        if !full_page && target.is_none() {
            return Ok(CaptureRegion::WINDOW);
        }
        let (mut left, mut top, mut width, mut height);
        if let Some(target) = target {
            let element = self.find_element(target).await?;
            let not_visible_error = || {
                Error::new(
                    Kind::Conflict,
                    "the element is not visible, so there is nothing to capture",
                )
                .with_reason("not_visible")
                .with_hint(
                    "Open what contains it, or choose another element from browser.snapshot.",
                )
            };
            let _ = self
                .call_method(
                    "DOM.scrollIntoViewIfNeeded",
                    json!({"backendNodeId": element.backend_node}),
                )
                .await;
            let model = self
                .call_method("DOM.getBoxModel", json!({"backendNodeId": element.backend_node}))
                .await;
            let model = model.map_err(|error| {
                if error.kind() == Kind::Conflict { not_visible_error() } else { error }
            })?;
            let corner = |index: usize| model["model"]["border"][index].as_f64().unwrap_or(0.0);
            let (xs, ys) = (
                [corner(0), corner(2), corner(4), corner(6)],
                [corner(1), corner(3), corner(5), corner(7)],
            );
            let minimum =
                |coordinates: [f64; 4]| coordinates.into_iter().fold(f64::INFINITY, f64::min);
            let maximum =
                |coordinates: [f64; 4]| coordinates.into_iter().fold(f64::NEG_INFINITY, f64::max);
            let metrics = self.call_method("Page.getLayoutMetrics", json!({})).await?;
            let page_offset =
                |name: &str| metrics["cssVisualViewport"][name].as_f64().unwrap_or(0.0);
            (left, top) = (minimum(xs) + page_offset("pageX"), minimum(ys) + page_offset("pageY"));
            (width, height) = (maximum(xs) - minimum(xs), maximum(ys) - minimum(ys));
            if width < 1.0 || height < 1.0 {
                return Err(not_visible_error());
            }
            left = left.max(0.0);
            top = top.max(0.0);
        } else {
            let metrics = self.call_method("Page.getLayoutMetrics", json!({})).await?;
            let size = |name: &str| metrics["cssContentSize"][name].as_f64().unwrap_or(0.0);
            (left, top) = (0.0, 0.0);
            (width, height) = (size("width").max(f64::from(WINDOW_WIDTH)), size("height").max(1.0));
        }
        let truncated = width > MAX_IMAGE_SIDE || height > MAX_IMAGE_SIDE;
        (width, height) = (width.ceil().min(MAX_IMAGE_SIDE), height.ceil().min(MAX_IMAGE_SIDE));
        Ok(CaptureRegion { x: left, y: top, width, height, beyond_viewport: true, truncated })
    }

    /// Captures a region and returns the image as base64.
    pub async fn capture_image(
        &self,
        region: CaptureRegion,
        scale: f64,
        encoding: ImageEncoding,
    ) -> Result<String> {
        let mut params = json!({
            "format": encoding.format.name(),
            "captureBeyondViewport": region.beyond_viewport,
            "optimizeForSpeed": encoding.is_fast,
        });
        if encoding.format != ImageFormat::Png {
            params["quality"] = json!(encoding.quality);
        }
        if region != CaptureRegion::WINDOW || scale < 1.0 {
            let (x, y) = match region.beyond_viewport {
                true => (region.x, region.y),
                // The window starts where the page is scrolled to.
                false => self.scroll_offset().await?,
            };
            params["clip"] = json!({"x": x, "y": y, "width": region.width, "height": region.height, "scale": scale});
        }
        let mut answer = self.call_method("Page.captureScreenshot", params).await?;
        match answer["data"].take() {
            Value::String(data) if !data.is_empty() => Ok(data),
            _ => Err(Error::new(Kind::Unavailable, "the browser returned no image")
                .with_reason("browser_refused")
                .with_hint("Try again, or with a smaller part of the page.")),
        }
    }

    async fn scroll_offset(&self) -> Result<(f64, f64)> {
        let metrics = self.call_method("Page.getLayoutMetrics", json!({})).await?;
        let offset = |name: &str| metrics["cssVisualViewport"][name].as_f64().unwrap_or(0.0);
        Ok((offset("pageX"), offset("pageY")))
    }
}

/// Returns the size stated in the header of a PNG.
pub fn png_size(data: &str) -> Option<(u32, u32)> {
    let header = STANDARD.decode(data.get(..32)?).ok()?;
    let read_u32 =
        |offset: usize| Some(u32::from_be_bytes(header.get(offset..offset + 4)?.try_into().ok()?));
    Some((read_u32(16)?, read_u32(20)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_scaled_to_fit_both_ways() {
        let region = |width, height| CaptureRegion { width, height, ..CaptureRegion::WINDOW };
        assert_eq!(region(1280.0, 720.0).scale_to_fit(1280, 1568), 1.0);
        assert_eq!(region(2560.0, 720.0).scale_to_fit(1280, 1568), 0.5);
        assert_eq!(region(1280.0, 3136.0).scale_to_fit(1280, 1568), 0.5);
        assert_eq!(region(100.0, 100.0).scale_to_fit(1280, 1568), 1.0);
    }

    #[test]
    fn the_format_follows_the_name() {
        for (path, format) in [
            ("a/b.PNG", Some(ImageFormat::Png)),
            ("x.y/shot.jpg", Some(ImageFormat::Jpeg)),
            ("x.webp/shot", None),
            ("x.gif/shot", None),
            ("shot.", None),
            (".shot", None),
        ] {
            assert_eq!(ImageFormat::from_file_name(path).unwrap(), format, "{path}");
        }
        for path in ["x.gif", "x.png.txt", "x.svg"] {
            let error = ImageFormat::from_file_name(path).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArguments, "{path}");
            assert!(error.hint_text().unwrap().contains(".png, .jpg, .jpeg or .webp"), "{error}");
        }
    }
}
