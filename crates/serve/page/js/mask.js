/** A mask as a list of strokes, which can be undone and drawn in any size. */

/** The color in which masks are shown: few images have it. */
export const COLOR = "#6a3df5";

export class Mask {
  /** Each `{ erases, width, points }` in pixels of the image. */
  strokes = [];

  /** For an image of this size. */
  constructor(width, height) {
    Object.assign(this, { width, height });
  }

  /** Whether nothing was painted. */
  get isEmpty() {
    return !this.strokes.some((stroke) => !stroke.erases);
  }

  begin(point, width, erases) {
    this.strokes.push({ erases, width, points: [point] });
  }

  extend(point) {
    this.strokes.at(-1)?.points.push(point);
  }

  undo() {
    this.strokes.pop();
  }

  clear() {
    this.strokes = [];
  }

  /** Paints everything. */
  fill() {
    const middle = this.height / 2;
    this.strokes = [
      {
        erases: false,
        width: 2 * this.height,
        points: [
          [0, middle],
          [this.width, middle],
        ],
      },
    ];
  }

  copy() {
    const copy = new Mask(this.width, this.height);
    copy.strokes = structuredClone(this.strokes);
    return copy;
  }

  /** Draws all strokes in a color on what is there. */
  draw(context, color) {
    context.clearRect(0, 0, this.width, this.height);
    this.strokes.forEach((stroke) => drawStroke(context, stroke, color));
  }

  /** White where the image is made again, black elsewhere. */
  canvas() {
    const strokes = sheet(this.width, this.height);
    this.draw(strokes.getContext("2d"), "#fff");
    const canvas = sheet(this.width, this.height);
    const context = canvas.getContext("2d");
    context.fillStyle = "#000";
    context.fillRect(0, 0, this.width, this.height);
    context.drawImage(strokes, 0, 0);
    return canvas;
  }
}

/** An empty canvas. */
export function sheet(width, height) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  return canvas;
}

/** Draws a stroke with round ends. */
export function drawStroke(context, { erases, width, points }, color) {
  context.globalCompositeOperation = erases ? "destination-out" : "source-over";
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  context.beginPath();
  points.forEach((point) => context.lineTo(...point));
  context.stroke();
  // A line without length is not drawn.
  context.beginPath();
  context.arc(...points[0], width / 2, 0, 2 * Math.PI);
  context.fill();
  context.globalCompositeOperation = "source-over";
}
