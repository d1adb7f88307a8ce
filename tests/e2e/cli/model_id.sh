#!/bin/sh
# kvcobra model-id: the digest of a folder by a second implementation of the rule, what changes it, what is refused.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

script=$(dirname "$0")/model_folder.py
export XDG_CACHE_HOME="$dir/cache"
id() {
    "$KVCOBRA" model-id "$dir/$1" 2>"$dir/err" || cat "$dir/err"
}

kinds="plain metadata order left-out numbers sharded weight shape type name theta null"
# shellcheck disable=SC2086
python3 "$script" make "$dir" $kinds
# shellcheck disable=SC2086
python3 "$script" digest "$dir" $kinds >"$dir/want"
vector=88269170c9e2958f43988147e37069036376fc5063ecddd33d885f31d495df4e
[ "$(id plain)" = "$vector" ] && ok "the test vector" || not_ok "the test vector: $(id plain)"
[ "$(wc -l <"$dir/want")" -eq 12 ] && ok "digests by the rule" || not_ok "digests by the rule"
while read -r kind want; do
    [ "$(id "$kind")" = "$want" ] && ok "the rule: $kind" || not_ok "the rule: $kind: $(id "$kind") instead of $want"
done <"$dir/want"
for kind in metadata order left-out numbers sharded; do
    [ "$(id "$kind")" = "$vector" ] && ok "the same model: $kind" || not_ok "the same model: $kind"
done
for kind in weight shape type name theta null; do
    [ "$(id "$kind")" != "$vector" ] && ok "another model: $kind" || not_ok "another model: $kind"
done

mkdir "$dir/links"
for file in config.json model.safetensors; do
    ln -s "../plain/$file" "$dir/links/$file"
done
[ "$(id links)" = "$vector" ] && ok "links to files" || not_ok "links to files: $(id links)"
mkdir "$dir/renamed"
cp "$dir/plain/config.json" "$dir/renamed"
cp "$dir/plain/model.safetensors" "$dir/renamed/weights.safetensors"
[ "$(id renamed)" = "$vector" ] && ok "the only file, by any name" || not_ok "the only file, by any name: $(id renamed)"

expect "as JSON" 0 "$KVCOBRA" model-id "$dir/plain" --json
expect_true "digest, format and tensors" "j == {'digest': '$vector', 'format': 'safetensors', 'tensors': 6}"

cat >"$dir/bad" <<'EOF'
offsets incomplete
overlap overlap
hole no tensor
tail no tensor
shape its type and shape
type Q7
negative does not have exactly
product its type and shape
entry does not have exactly
duplicate not a JSON object
json not a JSON object
list not a JSON object
metadata __metadata__
control control characters
length not a safetensors file
huge not a safetensors file
traversal is not a tensor and the name
absolute is not a tensor and the name
map is not a tensor and the name
escape is not a tensor and the name
missing names tensors
unnamed does not name it
absent is the download complete
twice is in
many more than 512
config model_type
EOF
# shellcheck disable=SC2046
python3 "$script" make "$dir" $(sed 's/^\([a-z]*\) .*/bad-\1/' "$dir/bad")
while read -r kind word; do
    expect_sentence "refused: $kind" "$word" "$KVCOBRA" model-id "$dir/bad-$kind"
done <"$dir/bad"

mkdir "$dir/pickle" "$dir/none" "$dir/no-config" "$dir/two" "$dir/both" "$dir/pipe" "$dir/short"
for kind in pickle none two both pipe short; do
    cp "$dir/plain/config.json" "$dir/$kind"
done
echo x >"$dir/pickle/pytorch_model.bin"
cp "$dir/plain/model.safetensors" "$dir/no-config"
cp "$dir/plain/model.safetensors" "$dir/two/a.safetensors"
cp "$dir/plain/model.safetensors" "$dir/two/b.safetensors"
cp "$dir/plain/model.safetensors" "$dir/both"
echo '{}' >"$dir/both/model.safetensors.index.json"
mkfifo "$dir/pipe/model.safetensors"
head -c 20 "$dir/plain/model.safetensors" >"$dir/short/model.safetensors"
expect_sentence "pickles" "pickles only" "$KVCOBRA" model-id "$dir/pickle"
expect_sentence "no weights" "no .safetensors file" "$KVCOBRA" model-id "$dir/none"
expect_sentence "no config.json" "config.json" "$KVCOBRA" model-id "$dir/no-config"
expect_sentence "two files without an index" "2 .safetensors files" "$KVCOBRA" model-id "$dir/two"
expect_sentence "one file and an index" "move away" "$KVCOBRA" model-id "$dir/both"
expect_sentence "a pipe" "not a regular file" "$KVCOBRA" model-id "$dir/pipe"
expect_sentence "a file that ends in its header" "incomplete" "$KVCOBRA" model-id "$dir/short"
expect_sentence "one file of a folder" "name the folder" "$KVCOBRA" model-id "$dir/plain/model.safetensors"
mkdir "$dir/adapter" "$dir/gap"
echo '{}' >"$dir/adapter/adapter_config.json"
cp "$dir/plain/model.safetensors" "$dir/adapter/adapter_model.safetensors"
expect_sentence "the folder of an adapter" "the folder of a LoRA adapter: merge" "$KVCOBRA" model-id "$dir/adapter"
cp "$dir/plain/config.json" "$dir/gap"
echo '{"weight_map": {"a": "model-00002-of-00002.safetensors"}}' >"$dir/gap/model.safetensors.index.json"
expect_sentence "an index without its files" "lacks model-00002-of-00002.safetensors" "$KVCOBRA" model-id "$dir/gap"
cp "$dir/plain/model.safetensors" "$dir/model-00001-of-00002"
expect_sentence "a file of a model for a model" "not a GGUF file but a safetensors file" "$KVCOBRA" generate \
    "$dir/model-00001-of-00002" --prompt x
expect_sentence "a folder for a model" "is a folder: name a GGUF file" "$KVCOBRA" generate "$dir/plain" --prompt x
expect_sentence "no such path" "nowhere" "$KVCOBRA" model-id "$dir/nowhere"
expect_sentence "neither format" "config.json" "$KVCOBRA" model-id "$dir/plain/config.json"

"$TINY_MODEL" "$dir/model.gguf"
expect "a GGUF file" 0 "$KVCOBRA" model-id "$dir/model.gguf" --json
expect_true "its digest" "len(j['digest']) == 64 and j['format'] == 'gguf' and j['tensors'] > 0"
gguf=$(id model.gguf)
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
expect "inspect its table" 0 "$KVCOBRA" inspect "$dir/3.table" --json
grep -q "$gguf" "$dir/out" && ok "the digest is that in a table" || not_ok "the digest is that in a table"

# what a damaged record would say instead of the weights
touch -d "1 hour ago" "$dir/plain/config.json" "$dir/plain/model.safetensors"
sleep_until_old() { # the times of change of inodes cannot be set
    until [ $(($(date +%s) - $(stat -c %Z "$dir/plain/model.safetensors"))) -gt 2 ]; do sleep 0.2; done
}
sleep_until_old
rm -r "$dir/cache"
[ "$(id plain)" = "$vector" ] && ok "a digest that is remembered" || not_ok "a digest that is remembered"
record=$(ls -d "$dir"/cache/kvcobra/model-id-*)
[ "$(stat -c %a "$record")" = 600 ] && ok "the mode of its record" || not_ok "the mode of its record: $(stat -c %a "$record")"
sed -i "s/^$vector/ffff${vector#????}/" "$record"
chmod 600 "$record"
[ "$(id plain)" = "ffff${vector#????}" ] && ok "the record is read" || not_ok "the record is read: $(id plain)"
# Ranks of an engine that start together: the weights are read by the one with the lock, here this test, and the others take its record
cat >"$dir/together.py" <<'PY'
import fcntl, os, subprocess, sys, time
kvcobra, model, record = sys.argv[1:]
with open(record, "r+", encoding="ascii") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    text = file.read()
    os.ftruncate(file.fileno(), 0)  # nothing is known yet
    ranks = [subprocess.Popen([kvcobra, "model-id", model], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    waits = f":{os.fstat(file.fileno()).st_ino} 0 EOF"
    while sum("->" in line and line.rstrip().endswith(waits) for line in open("/proc/locks", encoding="ascii")) < len(ranks):
        if any(rank.poll() is not None for rank in ranks):
            sys.exit("a rank did not wait")
        time.sleep(0.05)
    file.seek(0)
    file.write(text)
print(*{rank.communicate()[0].split()[0] for rank in ranks})
PY
[ "$(timeout 60 python3 "$dir/together.py" "$KVCOBRA" "$dir/plain" "$record")" = "ffff${vector#????}" ] &&
    ok "ranks that start together read weights once" || not_ok "ranks that start together read weights once"
touch "$dir/plain/config.json"
[ "$(id plain)" = "$vector" ] && ok "a file that changed" || not_ok "a file that changed: $(id plain)"
chmod 777 "$dir/cache/kvcobra"
[ "$(id plain)" = "$vector" ] && grep -q "is not remembered: other users may" "$dir/err" && ok "a folder of others" ||
    not_ok "a folder of others: $(cat "$dir/err")"

expect "no path" 2 "$KVCOBRA" model-id
expect "two paths" 2 "$KVCOBRA" model-id a b
finish
