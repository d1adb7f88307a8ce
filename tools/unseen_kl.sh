#!/bin/sh
# KL of tables on texts that took no part in making them: eight kinds, from documents of Debian packages or made by
# arithmetic. Prints the rows of alloc/EXPERIMENTS.md, "Texts that no table has seen".
#
#     sh tools/unseen_kl.sh [--model GGUF] [--kvcobra PATH] [--dir FOLDER] [--text FILE] [--bits LIST] [--windows N]
#         [--kinds LIST] [--states LIST] [--recent N] [--comparators LIST] [--lab PATH]
#
# --dir: for texts, statistics, tables and results (default: kvcobra-unseen); its files are not made again, so a run
# that ended early continues, and other options need another folder. --text: also calibrate on this text, without text
# of the model, and judge both. --bits: of the tables (default: "2 3 4"). --windows: of 1024 tokens, of each text
# (default: 8). --kinds: a part of "german russian questions dialogue mathematics log perl xml". --states: also judge
# tables of trellises with these numbers of states. --recent: newest tokens that a query sees exactly (default: 0).
# --comparators: also measure these formats (kvcobra-lab eval --help; --lab: its path), calibrated on what the model
# writes. The floor of a kind is a table of 3 bits from other documents of its kind. A kind whose documents are not on
# this machine is left out. Needs python3. More than an hour on two cores.
set -eu

model=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra/SmolLM2-135M-Instruct.Q4_1.gguf
kvcobra=kvcobra lab=kvcobra-lab dir=kvcobra-unseen text='' bits='2 3 4' windows=8 comparators=''
states='' recent=0
kinds='german russian questions dialogue mathematics log perl xml'

die()
{
    echo "unseen_kl.sh: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || die "$1 needs a value; the top of $0 has the options"
    case $1 in
    --model) model=$2 ;;
    --kvcobra) kvcobra=$2 ;;
    --lab) lab=$2 ;;
    --dir) dir=$2 ;;
    --text) text=$2 ;;
    --bits) bits=$2 ;;
    --windows) windows=$2 ;;
    --kinds) kinds=$2 ;;
    --states) states=$2 ;;
    --recent) recent=$2 ;;
    --comparators) comparators=$2 ;;
    *) die "$1 is no option; the top of $0 has the options" ;;
    esac
    shift 2
done
[ -r "$model" ] || die "there is no model at $model; 'sh tools/fetch_model.sh' downloads it, or name another with --model"
command -v "$kvcobra" >/dev/null || die "there is no $kvcobra: name it with --kvcobra"
[ -z "$comparators" ] || command -v "$lab" >/dev/null || die "there is no $lab, which measures other formats: name it with --lab"
mkdir -p "$dir"

# ---- texts ----

# The contents of the files that exist, at most 200 kB.
documents()
{
    for file in "$@"; do
        case $file in
        *.gz) [ ! -r "$file" ] || gzip -dc "$file" ;;
        *) [ ! -r "$file" ] || cat "$file" ;;
        esac
    done | tr -d '\r' | head -c 200000 | iconv -c -f UTF-8 -t UTF-8
}

# Worked problems: equations, greatest common divisors, products, factors, derivatives, matrices, fractions.
# $1: the seed. The generator is Lehmer's, exact in binary64, so that every awk writes the same text.
mathematics()
{
    awk -v x="$1" '
    function r(n) { x = x * 16807 % 2147483647; return x % n }
    function gcd(a, b, t) { while (b) { t = a % b; a = b; b = t } return a }
    function factors(n, s, p) {
        s = ""
        for (p = 2; n > 1; p++)
            while (n % p == 0) { s = s (s == "" ? "" : " * ") p; n /= p }
        return s
    }
    BEGIN {
        for (i = 1; i <= 700; i++) {
            k = r(7); a = 2 + r(40); b = 1 + r(90); c = 1 + r(30); d = 2 + r(60)
            printf "Problem %d. ", i
            if (k == 0) {
                printf "Solve %d x + %d = %d.\n", a, b, a * c + b
                printf "Subtract %d from both sides: %d x = %d. Divide by %d: x = %d.\n", b, a, a * c, a, c
            } else if (k == 1) {
                p = a * d; q = b * d
                printf "Find the greatest common divisor of %d and %d.\n", p, q
                while (q) { w = p % q; printf "%d = %d * %d + %d\n", p, (p - w) / q, q, w; p = q; q = w }
                printf "The last remainder that is not zero is %d.\n", p
            } else if (k == 2) {
                printf "Compute %d * %d.\n%d * %d + %d * %d = %d + %d = %d\n", a * c, 10 * b + d, a * c, 10 * b, a * c, d,
                    a * c * 10 * b, a * c * d, a * c * (10 * b + d)
            } else if (k == 3) {
                n = a * b * d
                printf "Write %d as a product of primes.\n%d = %s\n", n, n, factors(n)
            } else if (k == 4) {
                printf "Let f(x) = %dx^%d - %dx^2 + %dx. Find f%s(x) and f%s(1).\n", a, 3 + c % 6, b, d, "\047", "\047"
                printf "f%s(x) = %dx^%d - %dx + %d, so f%s(1) = %d.\n", "\047", a * (3 + c % 6), 2 + c % 6, 2 * b, d, "\047",
                    a * (3 + c % 6) - 2 * b + d
            } else if (k == 5) {
                printf "Find the determinant of\n\\begin{pmatrix} %d & %d \\\\ %d & %d \\end{pmatrix}.\n", a, b, c, d
                printf "\\[ %d \\cdot %d - %d \\cdot %d = %d \\]\n", a, d, b, c, a * d - b * c
            } else {
                n = b * d + c * a; m = a * d; g = gcd(n, m)
                printf "Add the fractions $\\frac{%d}{%d} + \\frac{%d}{%d}$.\n", b, a, c, d
                printf "$= \\frac{%d + %d}{%d} = \\frac{%d}{%d}$\n", b * d, c * a, m, n / g, m / g
            }
            print ""
        }
    }'
}

# Two people plan a journey, buy things, or talk about work. $1: the seed, as above.
dialogue()
{
    awk -v x="$1" '
    function r(n) { x = x * 16807 % 2147483647; return x % n }
    function one(list, part) { return part[1 + r(split(list, part, "|"))] }
    BEGIN {
        names = "Anna|Ben|Clara|David|Emma|Farid|Grace|Hugo|Ines|Jonas|Keiko|Liam|Mona|Nils|Olga|Pavel"
        things = "bread|a pair of boots|the tickets|a used bicycle|three apples|a lamp|the blue notebook|a train timetable"
        places = "Lisbon|the harbour|my sister\047s house|the old market|Prague|the mountains|the library|the doctor\047s office"
        days = "on Monday|tomorrow morning|next week|after lunch|at half past six|this evening|on my birthday"
        ask = "Could you tell me where I find @T?|Have you ever been to @P?|Shall we go to @P @D?|How much is @T?|" \
            "Did you remember @T?|Why did you not come to @P?|Who told you that?|What should we do @D?"
        say = "I think we should go to @P @D.|Well, I already bought @T.|No, not @D. I have to work.|Honestly, I do not know.|" \
            "That costs @N dollars, and I only have @M.|You are right, I forgot about @T.|Oh! I thought you were in @P.|" \
            "Let me see... yes, @N of them are left.|I would rather stay at home @D.|She said the same thing about @P."
        end = "Great, see you there.|All right, goodbye!|Thanks, that helps a lot.|Fine. Call me @D.|I hope so."
        for (i = 0; i < 260; i++) {
            a = one(names); b = one(names)
            n = 4 + r(7)
            for (j = 0; j < n; j++) {
                line = j == n - 1 ? one(end) : j % 2 ? one(say) : one(ask)
                if (r(3) == 0 && j < n - 1)
                    line = line " " one(say)
                while (match(line, /@[TPDNM]/)) {
                    c = substr(line, RSTART + 1, 1)
                    word = c == "T" ? one(things) : c == "P" ? one(places) : c == "D" ? one(days) : 2 + r(80)
                    line = substr(line, 1, RSTART - 1) word substr(line, RSTART + 2)
                }
                printf "%s: %s\n", j % 2 ? b : a, line
            }
            print ""
        }
    }'
}

# $1: a kind; $2: judge, the text that KL is measured on, or floor, other documents of this kind.
kind_text()
{
    man=/usr/share/man perl=/usr/share/perl doc=/usr/share/doc
    case $1-$2 in
    german-judge) documents $man/de/man1/dpkg-*.gz ;;                   # dpkg-dev
    german-floor) documents $man/de/man[58]/apt*.gz $man/de/man1/[mp]*.gz ;; # apt, man-db, procps
    russian-judge) documents $man/ru/man1/man.1.gz $man/ru/man1/[alw]*.gz ;; # man-db
    russian-floor) documents $man/ru/man8/user*.gz $man/ru/man[18]/[cgnp]*.gz ;; # passwd, psmisc
    questions-judge) documents $doc/sed/sedfaq.txt.gz ;;                # sed
    questions-floor) documents $perl/5*/*/FAQ.pod $perl/5*/*/*/FAQ.pod $perl/5*/*/*FAQ.pod ;; # perl-modules
    dialogue-judge) dialogue 1 ;;
    dialogue-floor) dialogue 1000003 ;;
    mathematics-judge) mathematics 1 ;;
    mathematics-floor) mathematics 1000003 ;;
    log-judge) documents /var/log/dpkg.log* ;;
    log-floor) documents /var/log/apt/history.log* /var/log/alternatives.log* ;;
    perl-judge) documents $perl/5.*.*/CPAN.pm ;;                        # perl-modules
    perl-floor) documents $perl/5.*.*/Benchmark.pm $perl/5.*.*/Fatal.pm $perl/5.*.*/Memoize.pm ;;
    xml-judge) documents /usr/share/mime/packages/freedesktop.org.xml ;; # shared-mime-info
    xml-floor) documents /usr/share/X11/xkb/rules/evdev.xml ;;           # xkb-data
    *) die "$1 is no kind; the top of $0 has them" ;;
    esac
}

found=''
for kind in $kinds; do
    for part in judge floor; do
        [ -s "$dir/$kind.$part.txt" ] || {
            kind_text "$kind" "$part" >"$dir/$kind.unfinished"
            mv "$dir/$kind.unfinished" "$dir/$kind.$part.txt"
        }
    done
    if [ "$(wc -c <"$dir/$kind.judge.txt")" -ge 20000 ] && [ "$(wc -c <"$dir/$kind.floor.txt")" -ge 20000 ]; then
        found="$found $kind"
    else
        echo "unseen_kl.sh: $kind is left out: its documents are not on this machine" >&2
    fi
done
[ -n "$found" ] || die "none of the texts is on this machine"

# ---- tables ----

# $1: name of statistics; further: options of calibrate.
statistics()
{
    name=$1
    shift
    [ -s "$dir/$name.stats" ] || "$kvcobra" calibrate "$model" -o "$dir/$name.stats" "$@" >/dev/null
}

# $1: name of statistics; $2: bits; $3: states of trellises, or nothing for those of 'solve'.
table()
{
    file=$dir/$1-$2${3:+-$3}.table
    [ -s "$file" ] || "$kvcobra" solve "$dir/$1.stats" --bpd "$2" ${3:+--trellis "$3"} -o "$file" >/dev/null
}

statistics own
[ -z "$text" ] || statistics text --text "$text" --own-share 0
for b in $bits; do
    table own "$b"
    [ -z "$text" ] || table text "$b"
    for n in $states; do
        table own "$b" "$n"
    done
done

# ---- results ----

# KL on one kind: of the tables, of the floor, of other formats.
judge()
{
    set -- --text "$dir/$1.judge.txt" --table "$dir/$1/floor-3.table"
    for b in $bits; do
        set -- "$@" --table "$dir/own-$b.table"
        [ -z "$text" ] || set -- "$@" --table "$dir/text-$b.table"
        for n in $states; do
            set -- "$@" --table "$dir/own-$b-$n.table"
        done
    done
    [ -z "$comparators" ] || set -- "$@" --comparator "$comparators"
    case $comparators in
    *kvquant* | *svd* | *oscar* | *all*) set -- "$@" --stats "$dir/own.stats" ;;
    esac
    program=$kvcobra
    [ -z "$comparators" ] || program=$lab
    "$program" eval "$model" --window 1024 --recent "$recent" --tokens $((1024 * windows)) --json "$@"
}

for kind in $found; do
    mkdir -p "$dir/$kind"
    statistics "$kind/floor" --text "$dir/$kind.floor.txt" --own-share 0
    table "$kind/floor" 3
    [ ! -s "$dir/$kind.json" ] || continue
    judge "$kind" >"$dir/$kind.part"
    mv "$dir/$kind.part" "$dir/$kind.json"
done

# shellcheck disable=SC2086 # one argument for each kind
python3 - "$dir" $found <<'EOF'
import json
import sys

kinds, rows = sys.argv[2:], {}
for kind in kinds:
    with open(f"{sys.argv[1]}/{kind}.json") as file:
        for row in json.load(file)["rows"]:
            rows.setdefault(row["name"], {})[kind] = row
print("| | bits per number | " + " | ".join(kinds) + " | mean | worst |")
print("|---" * (len(kinds) + 4) + "|")
floor = {kind: rows["floor-3"][kind]["kl"] for kind in kinds}
for name, by_kind in sorted(rows.items(), key=lambda item: next(iter(item[1].values()))["bpd_true"]):
    kl = [by_kind[kind]["kl"] for kind in kinds if kind in by_kind]
    bits = sum(row["bpd_true"] for row in by_kind.values()) / len(kl)
    cells = [f"{by_kind[kind]['kl']:.4f}" if kind in by_kind else "" for kind in kinds]
    print(f"| {name} | {bits:.2f} | " + " | ".join(cells) + f" | {sum(kl) / len(kl):.4f} | {max(kl):.4f} |")
ratio = [rows["own-3"][kind]["kl"] / floor[kind] for kind in kinds if "own-3" in rows]
if ratio:
    mean = sum(rows["own-3"][kind]["kl"] for kind in kinds) / sum(floor.values())
    print(f"own-3 over the floor: mean {mean:.2f}, worst {max(ratio):.2f}")
EOF
