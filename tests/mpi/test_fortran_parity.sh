#!/bin/sh
# The Fortran module `weft` and the C headers say the same: every public function and enumerator is there or stands in
# tests/mpi/fortran_exceptions with a reason; functions have as many arguments as in C, enumerators the same values,
# structures the same fields in the same places.
. tests/mpi/run.inc
flavour=
for flavour in $flavours; do has_fortran "$flavour" && break; done
has_fortran "$flavour" >/dev/null || exit 77
sources=fortran
exceptions=tests/mpi/fortran_exceptions
export LC_ALL=C

# ---- both sides as lists ----
echo '#include <weft/weft.h>' >"$work/all.c"
${CC:-cc} -E -P -Iinclude "$work/all.c" >"$work/headers" || fail "the headers cannot be read"
include=$("mpifort$(suffix "$flavour")" -print-file-name=include)
for file in "$sources"/weft_fortran*.c; do
    "mpicc$(suffix "$flavour")" -E -P -idirafter "$include" -Iinclude "$file"
done >"$work/shims" 2>"$work/log" || fail "the module's C cannot be read" "$work/log"
# Names of functions and how many arguments they have; pointers to functions and calls do not look like declarations.
arguments() {
    tr '\n' ' ' | sed -E 's/__attribute__ *\(\([^()]*(\([^()]*\))?[^()]*\)\)//g' | tr ';{}' '\n\n\n' |
        awk 'match($0, /^[ a-z_0-9A-Z*]*[ *]weft_[a-z0-9_]+ *\(/) {
            name = substr($0, RSTART, RLENGTH); sub(/ *\($/, "", name); sub(/.*[ *]/, "", name)
            rest = substr($0, RSTART + RLENGTH); depth = 1; count = 1
            if ($0 ~ /(^|[ \t])(return|else)[ \t]/) next
            if (rest ~ /^ *\*/) next
            if (rest ~ /^ *(void)? *\)/) count = 0
            for (i = 1; i <= length(rest) && depth > 0; i++) {
                c = substr(rest, i, 1)
                if (c == "(") depth++
                if (c == ")") depth--
                if (c == "," && depth == 1) count++
            }
            print name, count
        }' | sort -u
}
arguments <"$work/headers" >"$work/c_arguments"
arguments <"$work/shims" >"$work/shim_arguments"
cut -d' ' -f1 "$work/c_arguments" >"$work/c_names"
grep -o '\bWEFT_[A-Z0-9_]*\b' "$work/headers" | sort -u >"$work/c_constants"
# Fortran: one line for each statement.
cat "$sources"/weft.f90 "$sources"/*.inc | sed -E 's/![^'\'']*$//' |
    awk '{ line = line $0; if (line ~ /& *$/) { sub(/& *$/, "", line); next } print line; line = "" }' >"$work/statements"
sed -nE "s/^.*(function|subroutine) ([a-z_0-9]+)\(([^)]*)\).*bind\(C(, name='([a-z_0-9]+)')?\).*/\2 \5;\3/p" "$work/statements" |
    grep -v '^weft_activation' |
    awk -F';' '{ split($1, name, " "); print (name[2] ? name[2] : name[1]), gsub(/[a-z_0-9]+/, "", $2) }' |
    grep '^weft_' | sort -u >"$work/fortran_arguments"
sed -nE 's/^ *([a-z][^!]*)?(function|subroutine) (weft_[a-z_0-9]+)\(.*/\3/p' "$work/statements" | sort -u >"$work/fortran_names"
sed -nE '/^ *(enumerator|integer, parameter|type\(weft_value\), parameter)/s/.*:: *//p' "$work/statements" |
    grep -o 'WEFT_[A-Z0-9_]*' | sort -u >"$work/fortran_constants"
[ "$(wc -l <"$work/c_names")" -gt 200 ] && [ "$(wc -l <"$work/fortran_arguments")" -gt 150 ] &&
    [ "$(wc -l <"$work/c_constants")" -gt 60 ] || fail "the lists are too short to be true"

# ---- what is missing ----
grep -v '^#' "$exceptions" | awk 'NF { if (NF < 2) { print "no reason: " $0 > "/dev/stderr"; exit 1 } print $1 }' >"$work/patterns" ||
    fail "$exceptions: each line is a name and a reason"
excepted() {
    while read -r pattern; do
        # shellcheck disable=SC2254
        case $1 in $pattern) return 0 ;; esac
    done <"$work/patterns"
    return 1
}
for kind in names constants; do
    comm -23 "$work/c_$kind" "$work/fortran_$kind" >"$work/missing"
    while read -r name; do
        excepted "$name" || fail "C has $name, Fortran has not, and $exceptions does not say why"
    done <"$work/missing"
    while read -r name; do
        ! excepted "$name" || fail "Fortran has $name, which $exceptions leaves out"
    done <"$work/fortran_$kind"
done
while read -r pattern; do
    regex=$(echo "$pattern" | sed 's/\*/.*/g')
    cat "$work/c_names" "$work/c_constants" | grep -qx "$regex" || fail "$exceptions: C has no $pattern"
done <"$work/patterns"
# Beyond C: the world on an MPI communicator (weft/mpi.h), and one array as source and destination.
comm -13 "$work/c_names" "$work/fortran_names" >"$work/more"
printf '%s\n' weft_activation weft_all_reduce_in_place weft_all_reduce_in_place_start weft_world_from_mpi |
    diff "$work/more" - >"$work/log" || fail "Fortran has other functions beyond C's than expected" "$work/log"

# ---- arguments ----
sort -u "$work/c_arguments" "$work/shim_arguments" >"$work/arguments"
comm -23 "$work/fortran_arguments" "$work/arguments" >"$work/log"
[ ! -s "$work/log" ] || fail "these have another number of arguments in C, or are not there" "$work/log"

# ---- values of enumerators ----
grep -v -e WEFT_NO_VALUE -e WEFT_MAX_RANK "$work/fortran_constants" >"$work/enumerators"
{
    echo '#include <stdio.h>'
    echo '#include <weft/weft.h>'
    echo 'int main(void) {'
    sed 's/.*/printf("& %d\\n", (int)&);/' "$work/enumerators"
    echo 'return 0; }'
} >"$work/values.c"
${CC:-cc} -Iinclude "$work/values.c" -o "$work/values" >"$work/log" 2>&1 || fail "C does not have these values" "$work/log"
{ # a value that differs divides by zero, which does not compile
    echo 'program values'
    echo 'use weft'
    "$work/values" | awk '{ print "integer, parameter :: check" NR " = 1/merge(1, 0, " $1 " == " $2 ")" }'
    echo 'end program'
} >"$work/values.f90"
here=$PWD
(cd "$work" && "mpifort$(suffix "$flavour")" -fsyntax-only "$here/fortran/weft.f90" values.f90) >"$work/log" 2>&1 ||
    fail "enumerators have other values than in C" "$work/log"
(cd "$work" && sed '0,/== \([0-9]\)/s//== 9\1/' values.f90 >other.f90 &&
    "mpifort$(suffix "$flavour")" -fsyntax-only "$here/fortran/weft.f90" other.f90) >"$work/log" 2>&1 &&
    fail "a value that differs is not found"

# ---- structures: what the compiler makes of them against the headers ----
(cd "$work" && "mpifort$(suffix "$flavour")" -fsyntax-only -fc-prototypes "$here/fortran/weft.f90") 2>/dev/null >"$work/prototypes"
{
    echo '#include <stddef.h>'
    echo '#include <weft/weft.h>'
    awk '/^typedef struct/ { on = 1; text = ""; handle = 0; fields = 0 }
        on {
            if ($0 ~ /void \*handle;/) handle = 1
            line = $0
            if (line ~ /^typedef struct|^}/) gsub(/(weft|c)_[a-z_]+/, "fortran_&", line)
            else { gsub(/weft_(plan|world) /, "void *", line); if (match(line, /[a-z_0-9]+(\[[0-9]+\])?;|\(\*[a-z_]+\)/)) {
                field = substr(line, RSTART, RLENGTH); gsub(/\[.*|[;(*)]/, "", field); field_of[++fields] = field } }
            text = text line "\n"
        }
        /^}/ && on {
            on = 0
            if (handle) next
            name = $2; sub(/;/, "", name); c = name; sub(/^c_/, "weft_", c)
            printf "%s", text
            printf "_Static_assert(sizeof(fortran_%s) == sizeof(%s), \"%s\");\n", name, c, c
            for (f = 1; f <= fields; f++)
                printf "_Static_assert(offsetof(fortran_%s, %s) == offsetof(%s, %s), \"%s.%s\");\n",
                    name, field_of[f], c, field_of[f], c, field_of[f]
        }' "$work/prototypes"
    # the sizes that types have by themselves
    awk '/^ *type, bind\(C\) ::/ { name = $4 }
        match($0, /:: struct_bytes = [0-9]+/) {
            printf "_Static_assert(%s == sizeof(%s), \"%s.struct_bytes\");\n", substr($0, RSTART + 18, RLENGTH - 18), name, name
        }' "$work/statements"
} >"$work/layout.c"
if [ "$(grep -c '^_Static_assert' "$work/layout.c")" -lt 60 ]; then
    echo "structures are not compared: the Fortran compiler does not tell what it makes of them"
else
    ${CC:-cc} -std=c17 -Iinclude -fsyntax-only "$work/layout.c" >"$work/log" 2>&1 || fail "structures lie otherwise than in C" "$work/log"
fi
[ $failed = 1 ] || echo "$(wc -l <"$work/fortran_names") functions, $(wc -l <"$work/fortran_constants") constants, $(grep -c '^_Static_assert' "$work/layout.c") places in structures"
exit $failed
