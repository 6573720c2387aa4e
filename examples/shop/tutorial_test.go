// Package shop_test checks that the tutorial shows the code of these folders, and what it says to a shell.
package shop_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A block is one between fences of the tutorial.
type block struct{ language, text string }

// sections are those of the tutorial, by their headings, in order.
func sections(t *testing.T) (headings []string, blocks map[string][]block) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/tutorial.md")
	require.NoError(t, err)
	blocks = map[string][]block{}
	for _, section := range strings.Split(string(doc), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		headings = append(headings, heading)
		for _, m := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
			blocks[heading] = append(blocks[heading], block{m[1], m[2]})
		}
	}
	return headings, blocks
}

// folder is that of the step with a heading such as "1. Reject"; empty if it is none of a step.
func folder(heading string) string {
	number, name, isStep := strings.Cut(heading, ". ")
	if !isStep {
		return ""
	}
	return number + "-" + strings.ToLower(name)
}

func TestTutorial_ShowsTheCodeOfItsSteps(t *testing.T) {
	headings, blocks := sections(t)
	steps := 0
	for _, heading := range headings {
		step := folder(heading)
		if step == "" {
			continue
		}
		steps++
		files, err := filepath.Glob(step + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, step)
		var code strings.Builder
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			code.Write(source)
		}
		shown := 0
		for _, b := range blocks[heading] {
			if b.language == "go" {
				shown++
				assert.Contains(t, code.String(), b.text, "%s has not what the tutorial shows of it", step)
			}
		}
		assert.Positive(t, shown, heading)
	}
	folders, err := filepath.Glob("[0-9]-*")
	require.NoError(t, err)
	assert.Len(t, folders, steps, "each folder has a step")
}

func TestTutorial_CommandsSayWhatItShows(t *testing.T) {
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", inTurns(t), "-o", bin, "./...")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	headings, blocks := sections(t)
	for _, heading := range headings {
		t.Run(heading, func(t *testing.T) {
			t.Parallel()
			s := &shell{bin: bin, dir: t.TempDir(), reader: strings.NewReplacer()}
			for _, b := range blocks[heading] {
				if b.language == "console" {
					s.follow(t, b.text)
				}
			}
			assert.True(t, s.asked > 0 || folder(heading) == "", "a step shows what it does")
		})
	}
}

// inTurns is an overlay for go build in which serve.Work, of programs in a folder that has a folder turns, is told when it ends: the nth
// makes turns/n when it begins, and ends when turns/n.end is there, or turns is not.
func inTurns(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile("serve/help.go")
	require.NoError(t, err)
	const second = "time.After(time.Second)"
	require.Equal(t, 1, strings.Count(string(source), second))
	changed := strings.Replace(strings.Replace(string(source), second, "workEnds(ctx)", 1), `import (`, "import (\n\t\"os\"", 1) + `
func workEnds(ctx context.Context) <-chan time.Time {
	n, err := 1, error(nil)
	for ; ; n++ {
		if err = os.Mkdir(fmt.Sprint("turns/", n), 0o700); !errors.Is(err, os.ErrExist) {
			break
		}
	}
	if err != nil { // nobody takes turns
		return time.After(time.Second)
	}
	ends := make(chan time.Time, 1)
	go func() {
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			_, end := os.Stat(fmt.Sprint("turns/", n, ".end"))
			_, turns := os.Stat("turns")
			if end == nil || turns != nil {
				ends <- time.Now()
				return
			}
		}
	}()
	return ends
}
`
	dir := t.TempDir()
	help, overlay := filepath.Join(dir, "help.go"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(help, []byte(changed), 0o600))
	original, err := filepath.Abs("serve/help.go")
	require.NoError(t, err)
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: help}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	return overlay
}

// second matches a command that sends one request while another is worked on.
var second = regexp.MustCompile(`^\((.*) &\); sleep 0\.3; (.*)$`)

// ordered is such a command without the clock: the second request is sent when work on the first has begun. The first one's work ends
// when the second has its answer, or is worked on too; and the second one's work ends when the first has its answer. The folder goes all
// at once: what is parked may begin just then.
const ordered = `mkdir turns
$1 & first=$$!
until [ -d turns/1 ]; do kill -0 $$first && sleep 0.01 || exit 1; done
$2 & second=$$!
until [ -d turns/2 ] || ! kill -0 $$second 2>/dev/null; do sleep 0.01; done
touch turns/1.end; wait $$first
touch turns/2.end; wait $$second
mv turns over; rm -r over`

// atOnce is a command that sends two requests at the same time: their work takes no time, so that neither waits for too long.
const atOnce = `mkdir turns; touch turns/1.end turns/2.end
%s
until [ -d turns/2 ]; do sleep 0.01; done
mv turns over; rm -r over`

// A shell does what a reader of a section types.
type shell struct {
	bin, dir string
	asked    int
	real     sync.Once
	known    []string // what the tutorial shows, and what stands for it here: addresses, ids and times
	reader   *strings.Replacer
}

// follow types the commands of a block, and compares what they say.
func (s *shell) follow(t *testing.T, block string) {
	t.Helper()
	for _, command := range strings.Split("\n"+strings.TrimSpace(block), "\n$ ")[1:] {
		command, want, _ := strings.Cut(command, "\n")
		if program, ok := strings.CutPrefix(command, "go run ./"); ok {
			s.start(t, strings.Fields(program))
		} else {
			s.ask(t, command, want)
		}
	}
}

func (s *shell) ask(t *testing.T, command, want string) {
	t.Helper()
	require.Equal(t, strings.Contains(command, "sleep"), second.MatchString(command), "what it waits for is an event here")
	script := second.ReplaceAllString(s.reader.Replace(command), ordered)
	if s.asked++; script == s.reader.Replace(command) && strings.Contains(command, "&") {
		script = fmt.Sprintf(atOnce, script)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = s.dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output() // waits for what runs in the background too
	require.NoError(t, err, command)
	said := strings.TrimSpace(strings.ReplaceAll(string(out), "\r\n", "\n"))
	ids := regexp.MustCompile(`[0-9a-f]{32}|\d{4}-\d\d-\d\dT[0-9:.]+Z`)
	shown, seen := ids.FindAllString(want, -1), ids.FindAllString(said, -1)
	for i := range min(len(shown), len(seen)) {
		s.know(t, shown[i], seen[i])
	}
	assert.Equal(t, mask(s.reader.Replace(want)), mask(said), command)
}

func (s *shell) know(t *testing.T, shown, here string) {
	t.Helper()
	for i := 1; i < len(s.known); i += 2 {
		if s.known[i] == here {
			assert.Equal(t, s.known[i-1], shown, "the tutorial shows one thing as two")
		}
	}
	s.known = append(s.known, shown, here)
	s.reader = strings.NewReplacer(s.known...)
}

// start runs the program of a step until the section ends.
func (s *shell) start(t *testing.T, words []string) {
	t.Helper()
	flags := flag.NewFlagSet(words[0], flag.ContinueOnError)
	address := flags.String("listen", "localhost:8080", "")
	redisURL := flags.String("redis", "", "")
	require.NoError(t, flags.Parse(words[1:]))
	if *redisURL == "redis://localhost:6379" {
		s.real.Do(func() { s.know(t, *redisURL, "redis://"+redistest.Real(t).Addr) })
	}
	args := []string{"-listen", "127.0.0.1:0", "-redis", s.reader.Replace(*redisURL)}
	cmd := exec.Command(filepath.Join(s.bin, words[0]), args...)
	cmd.Dir = s.dir
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	log, listening := make(chan string, 1), make(chan string, 1)
	go func() {
		defer close(listening)
		var all strings.Builder
		for lines := bufio.NewScanner(said); lines.Scan(); {
			fmt.Fprintln(&all, lines.Text())
			if _, url, ok := strings.Cut(lines.Text(), "the shop is at http://"); ok {
				listening <- url
			}
		}
		log <- all.String()
	}()
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		all := <-log
		assert.NoError(t, cmd.Wait(), all)
		assert.NotContains(t, all, "WARN", "nothing went wrong")
	})
	url, ok := <-listening
	require.True(t, ok, "it did not start")
	s.know(t, *address, url)
}

// mask leaves out what differs each time.
func mask(said string) string {
	for _, differs := range []string{
		`(?m)^Date: .*$`, `(?m)^Retry-After: \d+$`, `(?m)^Content-Length: \d+$`, `"retry_after_ms":\d+`, `"conflicts":\d+`,
	} {
		said = regexp.MustCompile(differs).ReplaceAllString(said, "*")
	}
	return said
}
