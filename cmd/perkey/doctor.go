package main

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/ops"
)

const lineWidth = 80 // columns

func (t *tool) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "show what needs a person, with the evidence and the section of the runbook", Action: t.doctor,
		Description: "It reads each primary of Redis, the reports of processes, and the queues; it scans nothing.\n" +
			"Exit status: 0 nothing was found, 3 something was, 1 Redis could not be asked, or all that was found is what it did not tell.\n" +
			"Kinds of findings, for --ignore: " + strings.Join(ops.FindingKinds(), ", ") + ".",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "user", Usage: "compare the rights of this `USER` of Redis with what services need; by default those of the connection's user"},
			&cli.StringSliceFlag{Name: "ignore", Usage: "leave out findings of this `KIND`, which you accept; may be given again"},
		},
	}
}

type findingJSON struct {
	Kind     string         `json:"kind"`
	Area     ops.Area       `json:"area"`
	Severity ops.Severity   `json:"severity"`
	Subject  string         `json:"subject,omitempty"`
	Text     string         `json:"text"`
	Evidence []evidenceJSON `json:"evidence,omitempty"`
	ByHand   string         `json:"by_hand,omitempty"`
	Runbook  string         `json:"runbook"`
}

type evidenceJSON struct {
	Figure string `json:"figure"`
	Is     string `json:"is"`
	Want   string `json:"want,omitempty"`
}

// readFacts is what doctor judges. Tests change it.
var readFacts = ops.ReadFacts

func (t *tool) doctor(ctx context.Context, c *cli.Command) error {
	if _, err := args(c, 0, 0); err != nil {
		return err
	}
	ignored := c.StringSlice("ignore")
	for _, kind := range ignored {
		if !slices.Contains(ops.FindingKinds(), kind) {
			return usagef("--ignore %s: there is no such kind of finding; see perkey doctor --help", quote(kind))
		}
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	facts, err := readFacts(ctx, t.rdb, ops.ExamineOptions{Prefix: t.prefix, User: c.String("user")})
	if err != nil {
		return err
	}
	found := slices.DeleteFunc(facts.Findings(time.Now()), func(f ops.Finding) bool { return slices.Contains(ignored, f.Kind) })
	if isJSON(c) {
		err = t.json(struct {
			Servers   int           `json:"servers"`
			Processes int           `json:"processes"`
			Queues    int           `json:"queues"`
			Findings  []findingJSON `json:"findings"`
		}{len(facts.Servers.Value), len(facts.Fleet.Value.Processes), len(facts.Queues.Value), findingsJSON(found)})
	} else {
		t.findings(facts, found)
	}
	unknown := func(f ops.Finding) bool { return f.Severity == ops.SeverityUnknown }
	switch {
	case err != nil || len(found) == 0:
		return err
	case slices.ContainsFunc(found, func(f ops.Finding) bool { return !unknown(f) }):
		return statusError(exitFound)
	default:
		return statusError(exitError)
	}
}

func findingsJSON(found []ops.Finding) []findingJSON {
	all := []findingJSON{}
	for _, f := range found {
		j := findingJSON{f.Kind, f.Area, f.Severity, f.Subject, f.Text, nil, f.ByHand, f.Runbook}
		for _, e := range f.Evidence {
			j.Evidence = append(j.Evidence, evidenceJSON(e))
		}
		all = append(all, j)
	}
	return all
}

// findings writes a table, with lines below each finding for its evidence.
func (t *tool) findings(facts ops.Facts, found []ops.Finding) {
	asked := plural(int64(len(facts.Servers.Value)), "primary", "primaries") + " of Redis, " +
		plural(int64(len(facts.Fleet.Value.Processes)), "process", "processes") + ", " + plural(int64(len(facts.Queues.Value)), "queue", "queues")
	if len(found) == 0 {
		t.printf("Nothing was found: %s.\n", asked)
		return
	}
	rows := []row{}
	for _, f := range found {
		severity := string(f.Severity)
		if f.Severity == ops.SeverityUnknown {
			severity = "not known"
		}
		first := row{severity, string(f.Area), ""}
		add := func(indent, text string) {
			for i, line := range wrapped(printable(text), lineWidth-len("not known  exclusion  ")-2) {
				if first[2] = indent + line; i > 0 {
					first[2] = "  " + line
				}
				rows = append(rows, first)
				first = row{"", "", ""}
			}
		}
		add("", f.Text)
		for _, e := range f.Evidence {
			add("  ", e.String())
		}
		if f.ByHand != "" {
			add("  ", "by hand: "+f.ByHand)
		}
		add("  ", f.Runbook)
	}
	t.table(row{"SEVERITY", "AREA", "FINDING"}, rows)
	t.printf("\n%s in %s.\n", plural(int64(len(found)), "finding", "findings"), asked)
}

// wrapped breaks a text into lines, between words if they are not too long.
func wrapped(text string, columns int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		for runes := []rune(line + word); ; {
			if line = string(runes); len(runes) <= columns {
				break
			}
			lines, runes = append(lines, string(runes[:columns])), runes[columns:]
		}
	}
	return append(lines, line)
}
