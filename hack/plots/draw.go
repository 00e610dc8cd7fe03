package plots

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Pages show the pictures on white and on black, and a picture cannot know which: it has no background, and all colours
// are readable on both.
var (
	ink     = color.RGBA{0x7d, 0x7d, 0x7d, 0xff}
	colours = []color.Color{
		color.RGBA{0x3b, 0x82, 0xf6, 0xff}, color.RGBA{0xe0, 0x7b, 0x39, 0xff}, color.RGBA{0x2f, 0xa3, 0x6b, 0xff},
		color.RGBA{0xa8, 0x6b, 0xd9, 0xff},
	}
	points = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}}
)

const (
	width = 22 * vg.Centimeter
	wide  = vg.Length(10) // points, of a bar
	gap   = vg.Length(10)
	// spare is the space at the sides and beside texts: they are longer in other fonts than the plot's.
	spare = vg.Length(18)
)

// picture is a plot that is being made.
type picture struct {
	title, x, y string
	scale       float64 // of the figures on the y axis
	*plot.Plot
	height vg.Length
}

// begin makes an empty plot with the title, all in one colour.
func (p *picture) begin() {
	p.Plot = plot.New()
	p.BackgroundColor = nil
	p.Title.Text, p.Title.Padding = p.title, vg.Points(8)
	p.X.Label.Text, p.Y.Label.Text = p.x, p.y
	for _, style := range []*text.Style{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Color, style.Font.Variant, style.Font.Size = ink, "Sans", 11
	}
	p.Title.TextStyle.Font.Size = 13
	for _, line := range []*draw.LineStyle{&p.X.LineStyle, &p.Y.LineStyle, &p.X.Tick.LineStyle, &p.Y.Tick.LineStyle} {
		line.Color = ink
	}
	p.Legend.ThumbnailWidth, p.Legend.Padding = vg.Points(14), vg.Points(3)
}

// bars draws a group of horizontal bars for each row, from the top; each bar has its figure beside it.
func (p *picture) bars(all figures, part string, kinds, rows []group) error {
	p.begin()
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, width/2
	p.Y.Padding = spare
	names := make([]string, len(rows))
	for k, kind := range kinds {
		values := make(plotter.Values, len(rows))
		ends := plotter.XYLabels{}
		for i, row := range rows {
			found, err := all.of(part, row.subject, kind.what)
			if err != nil {
				return err
			}
			at := len(rows) - 1 - i // the first one is uppermost
			names[at], values[at] = row.label, found[0].median
			ends.XYs = append(ends.XYs, plotter.XY{X: found[0].median, Y: float64(at)})
			ends.Labels = append(ends.Labels, fmt.Sprintf("%.3g", found[0].median))
		}
		bars, err := plotter.NewBarChart(values, wide)
		if err != nil {
			return err
		}
		offset := (vg.Length(len(kinds)-1)/2 - vg.Length(k)) * (wide + 1)
		bars.Horizontal, bars.Color, bars.LineStyle.Width, bars.Offset = true, colours[k], 0, offset
		labels, err := plotter.NewLabels(ends)
		if err != nil {
			return err
		}
		for i := range labels.TextStyle {
			labels.TextStyle[i] = text.Style{Color: ink, Font: font.From(plot.DefaultFont, 9), YAlign: text.YCenter,
				Handler: plot.DefaultTextHandler}
			labels.TextStyle[i].Font.Variant = "Sans"
		}
		labels.Offset = vg.Point{X: 3, Y: offset}
		p.Add(bars, labels)
		p.Legend.Add(kind.label, bars)
	}
	p.NominalY(names...)
	p.height = vg.Length(len(rows))*(wide*vg.Length(len(kinds))+gap) + 70
	return nil
}

// lines draws a line for each group, over the sizes of its figures.
func (p *picture) lines(all figures, part string, groups []group) error {
	p.begin()
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = vg.Points(10)
	p.height = 9 * vg.Centimeter
	var ticks plot.ConstantTicks
	for i, g := range groups {
		found, err := all.of(cmp.Or(g.part, part), g.subject, g.what)
		if err != nil {
			return err
		}
		var line plotter.XYs
		for _, f := range found {
			line = append(line, plotter.XY{X: place(f.size), Y: f.median * p.scale})
			ticks = append(ticks, plot.Tick{Value: place(f.size), Label: fmt.Sprint(f.size)})
		}
		l, dots, err := plotter.NewLinePoints(line)
		if err != nil {
			return err
		}
		l.Color, l.Width = colours[i], 1.5
		dots.Color, dots.Shape, dots.Radius = colours[i], points[i], 3
		p.Add(l, dots)
		p.Legend.Add(g.label, l, dots)
	}
	slices.SortFunc(ticks, func(a, b plot.Tick) int { return cmp.Compare(a.Value, b.Value) })
	p.X.Tick.Marker = slices.Compact(ticks)
	p.Y.Min, p.Y.Max = 0, p.Y.Max*1.35 // the legend is above the lines
	return nil
}

// place returns the position of a size on the x axis, which is logarithmic; 0 is a step before 1.
func place(size float64) float64 {
	if size == 0 {
		return -1
	}
	return math.Log10(size)
}

func (p *picture) svg() ([]byte, error) {
	c := vgsvg.New(width, p.height)
	p.Draw(draw.Crop(draw.New(c), spare/2, -2*spare, 2, -2))
	var out bytes.Buffer
	_, err := c.WriteTo(&out)
	// Few readers have the font: fonts of its width come next.
	return bytes.ReplaceAll(out.Bytes(), []byte("family:Liberation Sans"), []byte("family:Liberation Sans,Arial,Helvetica,sans-serif")), err
}
