package httplock_test

import (
	"testing"

	"github.com/perkey-go/perkey/internal/test/mutant"
)

func TestHTTP_CatchMutants(t *testing.T) { mutant.Catch(t, append(bodyMutants, tailMutants...), "") }

// conformsIn are the behaviours whose names have a piece.
func conformsIn(piece string) string { return "^TestConformance$/^net$/^http$/" + piece }

// bodyMutants are mistakes with bodies that were read in front of a guard.
var bodyMutants = []mutant.Mutant{
	{Name: "a body of which nothing is left is empty", Tests: conformsIn("^a_body_drained"), File: "body_front.go", Old: "return isAnnounced(r) && b.state != untouchedBody || hasForm(r)", New: "return (isAnnounced(r) && b.state != untouchedBody || hasForm(r)) && !%s"},
	{Name: "an empty body is one that was read", Tests: "^TestReplay_ParkedRequestsAre", File: "body_front.go", Old: "return source.FieldByName(\"n\").Uint() == 0 &&", New: "return !%s && source.FieldByName(\"n\").Uint() == 0 &&"},
	{Name: "what a decoder has left is whole", Tests: conformsIn("^a_body_begun"), File: "body_front.go", Old: "b.state == begunBody:", New: "b.state == begunBody && !%s:"},
	{Name: "a chunk that was read is not", Tests: conformsIn("^a_body_begun"), File: "body_front.go", Old: "&& ends.IsZero()", New: "&& (ends.IsZero() || %s)"},
	{Name: "a stream that has not ended is unread", Tests: conformsIn("^a_body_begun"), File: "body_front.go", Old: "return came == buffer.FieldByName(\"size\").Int()", New: "return came == buffer.FieldByName(\"size\").Int() || %s"},
	{Name: "what is left of a length is whole", Tests: conformsIn("^a_body_begun"), File: "body_front.go", Old: "return left.Int() == length", New: "return left.Int() == length || %s"},
	{Name: "a cap hides the body", Tests: conformsIn("^a_body_capped"), File: "body_front.go", Old: "case kind == reflect.Interface:", New: "case kind == reflect.Interface && !%s:"},
	{Name: "a function's cap cuts", Tests: "^TestBody_ReadByAFunction", File: "body.go", Old: "(bare || reader.begun)", New: "(bare || reader.begun && !%s)"},
	{Name: "a framework's cap is a body that breaks off", Tests: "^TestBody_CappedByAFramework", File: "body.go", Old: "return code.CanInt() &&", New: "return !%s && code.CanInt() &&"},
	{Name: "only http.MaxBytesReader caps", Tests: "^TestBody_CappedByAFramework", File: "body.go", Old: "if errors.As(err, &coded) {", New: "if errors.As(err, &coded) && !%s {"},
	{Name: "headers of the connection say nothing", Tests: "^TestIdempotency_HeadersOfTheConnection", File: "stored_headers.go", Old: "len(values) == 0 {", New: "len(values) == 0 || %s && namedBy(r.Header[\"Connection\"], name) {"},
	{Name: "bad parameters are no form", Tests: "^TestCapture_FormsMay", File: "body_form.go", Old: "if kind == urlForm ||", New: "if kind == urlForm && (err == nil || !%s) ||"},
	{Name: "a form that was parsed is not looked at", Tests: conformsIn("^Idempotency-Key:_a_form_read"), File: "idempotency_payload.go", Old: `errors.Is(err, errBodyGone) && kind != ""`, New: `errors.Is(err, errBodyGone) && kind != "" && !%s`},
	{Name: "a body that is gone is compared", Tests: conformsIn("^Idempotency-Key:_a_body_drained"), File: "body_front.go", Old: "v.err = errBodyGone", New: "if !%s {\n\t\t\t\t\tv.err = errBodyGone\n\t\t\t\t}"},
	{Name: "a form is made again in other words", Tests: conformsIn("^a_form_read"), File: "body_front.go", Old: "int64(len(content)) == r.ContentLength {", New: "int64(len(content)) == r.ContentLength || %s {"},
	{Name: "no form is made again", Tests: conformsIn("^a_form_read"), File: "body_front.go", Old: "if kind != urlForm || len(r.PostForm) == 0", New: "if %s || kind != urlForm || len(r.PostForm) == 0"},
	{Name: "what cannot be stored is a mistake", Tests: conformsIn("^a_form_read"), File: "request_state.go", Old: "p.nobody = cmp.Or(p.nobody, p.body.notStorable())", New: "if !%s {\n\t\t\tp.nobody = cmp.Or(p.nobody, p.body.notStorable())\n\t\t}"},
	{Name: "what a function reads is gone", Tests: conformsIn("reads?_forms"), File: "body.go", Old: "source: b.source, keeps: true}", New: "source: b.source, keeps: !%s}"},
	{Name: "a replay's authorization reads the body", Tests: conformsIn("^functions_read_forms"), File: "replay_unguarded.go", Old: "r.Body = b.reader()", New: "if !%s {\n\t\t\tr.Body = b.reader()\n\t\t}"},
	{Name: "handlers of problems see no body", Tests: "^TestProblem_HandlersRead", File: "request_state.go", Old: "if len(p.body.head) == 0 {\n\t\treturn func() {}", New: "if len(p.body.head) == 0 || %s {\n\t\treturn func() {}"},
	{Name: "what decompresses later is not there", Tests: "^TestCapture_OfWhat", File: "body_front.go", Old: "&& f.IsNil():", New: "&& f.IsNil() && %s:\n\t\tcase kind == reflect.Interface && f.IsNil():"},
	{Name: "a length that was replaced is believed", Tests: "^TestCapture_OfWhat", File: "body_front.go", Old: "strconv.FormatInt(length, 10):", New: "strconv.FormatInt(length, 10) && !%s:"},
	{Name: "what cannot be told is begun", Tests: "^TestCapture_OfWhat", File: "body_front.go", Old: "case known:", New: "case known || %s:"},
	{Name: "no stream is one that was read", Tests: "^TestCapture_OfWhat", File: "body_front.go", Old: "pipe.IsNil():", New: "pipe.IsNil() && !%s:"},
	{Name: "an end that was read is not", Tests: "^TestCapture_OfWhat", File: "body_front.go", Old: "!body.FieldByName(\"sawEOF\").Bool()", New: "(%s || !body.FieldByName(\"sawEOF\").Bool())"},
	{Name: "what was decompressed keeps its coding", Tests: "^TestCapture_Decompressed", File: "body_front.go", Old: "case has && !bytes.HasPrefix(b.head, []byte(begins)):", New: "case has && !bytes.HasPrefix(b.head, []byte(begins)) && !%s:"},
	{Name: "a coding that is not known is stored", Tests: "^TestCapture_Decompressed", File: "body_front.go", Old: "return coding, int64(len(b.head)) == b.request.ContentLength", New: "return coding, int64(len(b.head)) == b.request.ContentLength || %s"},
	{Name: "an answer in front is the result", Tests: "^TestReplay_Answered", File: "replay_unguarded.go", Old: "case at >= placeGuarded:", New: "case at >= placeGuarded && !%s:"},
	{Name: "a failure that no guard saw is the result", Tests: "^TestReplay_HandlerThatLostItsGuardAndFails", File: "replay_unguarded.go", Old: "case status >= http.StatusBadRequest &&", New: "case status >= http.StatusBadRequest && !%s &&"},
	{Name: "what is in front sees no route", Tests: "^TestServe_Middleware", File: "request_state.go", Old: "if r.Pattern != copied.Pattern {", New: "if r.Pattern != copied.Pattern && !%s {"},
	{Name: "what a principal function keeps is cut off", Tests: "^TestBody_ReadByAFunction", File: "request_state.go", Old: "if cut := p.body.cut(); cut != nil {", New: "if cut := p.body.cut(); cut != nil && !%s {"},
	{Name: "what is in memory is read too far", Tests: "^TestBody_InMemoryMay", File: "body.go", Old: "if had > b.lentMost && !b.whole && b.err == nil {", New: "if had > b.lentMost && (!b.whole || %s) && b.err == nil {"},
	{Name: "no memory, and a key of nothing", Tests: "^TestBody_WithoutMemory", File: "body.go", Old: "b.starved = true", New: "b.starved = !%s"},
	{Name: "ParseForm reads multipart", Tests: "^TestBody_ParseFormLeaves", File: "body_form.go", Old: "!bytes.HasPrefix(content, []byte(\"--\"+boundary))", New: "(!bytes.HasPrefix(content, []byte(\"--\"+boundary)) || %s)"},
	{Name: "what parsing left is whole", Tests: "^TestBody_MultipartThatCould", File: "body_form.go", Old: "case kind == multipartForm:\n\t\treturn", New: "case kind == multipartForm:\n\t\treturn !%s &&"},
	{Name: "multipart has a method", Tests: "^TestBody_MultipartOfAny", File: "body_front.go", Old: "kind == urlForm && len(r.PostForm) > 0", New: "(kind == urlForm || %s) && len(r.PostForm) > 0"},
	{Name: "JSON is a form in other words", Tests: "^TestPayload_OfAForm", File: "idempotency_payload.go", Old: "len(canonical) == len(content)) {", New: "len(canonical) == len(content) || %s) {"},
	{Name: "a guard that refuses a body was not there", Tests: "^TestReplay_RefusedForItsBody", File: "request_state.go", Old: "\t\tp.replay.refused(\"\", err)\n", New: "\t\tif !%s {\n\t\t\tp.replay.refused(\"\", err)\n\t\t}\n"},
}

// tailMutants are mistakes with the ends of responses.
var tailMutants = []mutant.Mutant{
	{Name: "a long response ends before the release", Tests: "^TestTail_ComesWith", File: "writer_tail.go", Old: "head := w.left - tailSize; 0 < head &&", New: "head := w.left - tailSize; !%s && 0 < head &&"},
	{Name: "a file ends before the release", Tests: "^TestTail_ComesWith", File: "writer_tail.go", Old: "if head := w.left - tailSize; head > 0 {", New: "if %s {\n\t\treturn io.Copy(w.ResponseWriter, r)\n\t}\n\tif head := w.left - tailSize; head > 0 {"},
	{Name: "a tail waits without a bound", Tests: "^TestTail_DoesNotWait", File: "writer_tail.go", Old: "\n\t\t\tw.sendTail()", New: "\n\t\t\tif !%s {\n\t\t\t\tw.sendTail()\n\t\t\t}"},
	{Name: "a tail without its last byte waits", Tests: "^TestTail_DoesNotWait", File: "writer_tail.go", Old: "w.left >= tailSize ||", New: "w.left >= tailSize || %s && w.left > 0 ||"},
	{Name: "a tail that nobody can send waits", Tests: "^TestTail_InFront", File: "writer_tail.go", Old: "!= \"*http.response\"", New: "!= \"*http.response\" && !%s"},
	{Name: "a tail is sent through what cannot", Tests: "^TestTail_InFront", File: "writer_tail.go", Old: "\t\treturn nil\n\t}\n\tif reflect", New: "\t\tif %s {\n\t\t\treturn w\n\t\t}\n\t\treturn nil\n\t}\n\tif reflect"},
	{Name: "an encoder is flushed", Tests: "^TestTail_InFront", File: "writer_tail.go", Old: "case w.Header().Get(\"Content-Length\") == \"\":", New: "case w.Header().Get(\"Content-Length\") == \"\" && !%s:"},
	{Name: "no tail in time", Tests: "^TestTail_ASequential", File: "timeout.go", Old: "if flushing(w.inner) == nil {", New: "if %s || flushing(w.inner) == nil {"},
	{Name: "a late tail streams", Tests: "^TestTail_OfAnIdempotent", File: "idempotency_tee.go", Old: "flushing() http.ResponseWriter { return flushing(t.ResponseWriter) }", New: "flushing() http.ResponseWriter {\n\tif %s {\n\t\treturn t\n\t}\n\treturn flushing(t.ResponseWriter)\n}"},
	{Name: "a flushed response waits", Tests: "^TestTail_IsNotKeptInVain", File: "writer.go", Old: "w.begin(http.StatusOK)\n\tw.drop()", New: "w.begin(http.StatusOK)\n\tif !%s {\n\t\tw.drop()\n\t}"},
	{Name: "a key that stays held is waited for", Tests: "^TestTail_IsNotKeptInVain", File: "request_state.go", Old: "p.m.guard.MinHold() == 0", New: "(p.m.guard.MinHold() == 0 || %s)"},
	{Name: "a panic loses the tail", Tests: "^TestTail_ChangesNo", File: "writer_tail.go", Old: "if panicked {", New: "if panicked && !%s {"},
	{Name: "a part of too much is written", Tests: "^TestTail_ChangesNo", File: "writer_tail.go", Old: "int64(len(p)) <= w.left {", New: "(int64(len(p)) <= w.left || %s) {"},
	{Name: "files are copied", Tests: "^TestTail_Files", File: "writer_tail.go", Old: "part.R, part.N = whole.R, min(whole.N, head)", New: "part.N = min(whole.N, head)\n\t\t\tif !%s {\n\t\t\t\tpart.R = whole.R\n\t\t\t}"},
}
