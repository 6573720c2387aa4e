package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"
)

const notStopped = `The code of the holder is not stopped: it learns that its lease is lost, and may
go on. Writes that check the fence are safe from it; others can happen twice.`

func (t *tool) unlockCommand() *cli.Command {
	return &cli.Command{
		Name: "unlock", Usage: "take a key from the holder that has a fence", ArgsUsage: "KEY --fence N --reason TEXT",
		Description: "The next that waits gets the key. " + notStopped,
		Flags:       []cli.Flag{&cli.Int64Flag{Name: "fence", Usage: "the fence `N` of the holder, as show has it"}, reasonFlag()},
		Action:      t.unlock,
	}
}

func (t *tool) unlock(ctx context.Context, c *cli.Command) error {
	key, err := keyArg(c)
	if err != nil {
		return err
	}
	fence := c.Int64("fence")
	if fence <= 0 {
		return usagef("perkey unlock: --fence N is needed, so that a later holder keeps the key: see perkey show %s", shell(key))
	}
	why, err := by(c)
	if err != nil {
		return err
	}
	o, err := t.connectOperator(ctx, c)
	if err != nil {
		return err
	}
	if err := o.Unlock(ctx, why, key, fence); err != nil {
		return err
	}
	info, err := t.locker.Inspect(ctx, key)
	if err != nil {
		return fmt.Errorf("the key was taken; then: %w", err)
	}
	if isJSON(c) {
		return t.json(struct {
			keyJSON
			Unlocked bool `json:"unlocked"`
			Now      any  `json:"now"`
		}{keyOf(key), true, showOf(info, nil)})
	}
	t.printf("Taken: the holder with fence %d does not have %s any more.\n", fence, quote(key))
	if info.Free() {
		t.printf("Nobody has it now.\n")
	}
	for _, h := range info.Holders {
		t.printf("%s has it now, with fence %d.\n", processName(h.Locker), h.Fence)
	}
	t.printf("%s\n", notStopped)
	return nil
}
