#!/bin/sh
# examples/checkpoint.c and .f90, built outside the tree against an installed weft: saved on n ranks and loaded on m, under
# mpirun and weft launch, the tensors are the same to the bit; also if each rank writes files of its own, is killed while it
# writes, or finds its disk full.
. tests/mpi/run.inc
cmake --install "$WEFT_BUILD_DIR" --prefix "$work/tree" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$work/tree" -name weft.pc)")
export PKG_CONFIG_PATH
cp examples/checkpoint.c examples/checkpoint.f90 "$work/"
cd "$work" || exit 1
weft=$WEFT_BIN

launch() { # N program words...
    launch_n=$1
    shift
    "$weft" launch -n "$launch_n" --no-logs -- "$@" >out 2>&1 || fail "launch -n $launch_n $* (exit $?)" out
}
equal() { # A B: of one step
    "$weft" checkpoint verify "$2" >out 2>&1 || fail "$2 is damaged" out
    "$weft" checkpoint diff "$1" "$2" >out 2>&1 || fail "$1 and $2 differ" out
}
# from_to START PROGRAM N M: N ranks train to step 7; M ranks take the step over, and save it as theirs
from_to() {
    start=$1 program=$2 n=$3 m=$4
    rm -rf run other
    $start "$n" "$program" run 7
    cp -r run other
    rm -rf other/latest
    $start "$m" "$program" other 7
    grep -q '^begins.* 7$' out || fail "$program: $m ranks do not begin at step 7" out
    equal run other
    "$weft" checkpoint inspect run >out 2>&1 || fail "inspect" out
    grep -q 'hidden.weight' out || fail 'inspect lacks a tensor' out
}

${CC:-cc} -O2 -Wall -Wextra -Werror checkpoint.c $(pkg-config --cflags --libs weft) -o checkpoint_c >log 2>&1 ||
    fail 'checkpoint.c does not compile' log
for pair in '1 3' '2 1' '3 4' '4 2'; do
    # shellcheck disable=SC2086
    from_to launch ./checkpoint_c $pair
done
# A run that went on has the bits of a whole one on the same ranks.
rm -rf run whole
launch 2 ./checkpoint_c whole 12
launch 2 ./checkpoint_c run 7
launch 2 ./checkpoint_c run 12
equal whole run
# The steps of a program have no model that weft knows, and stay as they are.
for words in 'train run' 'train data.path=checkpoint.c checkpoint.dir=run train.steps=13' 'generate run --prompt x' \
    'train data.path=checkpoint.c model.from=run'; do
    # shellcheck disable=SC2086
    "$weft" $words >out 2>&1 && fail "weft $words takes the steps of a program" out
    grep -q 'weft train`' out || fail "weft $words" out
done
equal whole run
"$weft" checkpoint reshard run sharded --format hf >out 2>&1 || fail 'reshard' out

# ---- each rank writes files of its own ----
# Four ranks go on with the bits of the undisturbed run. Two ranks that take the slices over have the bits of two that take
# over the files of all ranks together.
rm -rf run undisturbed together
launch 4 ./checkpoint_c undisturbed 12 sliced
launch 4 ./checkpoint_c run 7 sliced
[ -d run/rank_3 ] && [ ! -d run/step-000000000007 ] || fail 'no files of rank 3, or files of all ranks'
cp -r run half
rm -rf half/latest
launch 4 ./checkpoint_c run 12 sliced
equal undisturbed run
launch 4 ./checkpoint_c together 7
equal half together
launch 2 ./checkpoint_c half 12 sliced
grep -q '^begins.* 7$' out || fail '2 ranks do not begin at step 7 of 4 ranks' out
[ ! -d half/rank_2 ] || [ ! -d half/rank_2/step-000000000012 ] || fail 'step 12 of 2 ranks has a rank 2'
launch 2 ./checkpoint_c together 12
equal half together
# Numbers that differ from the undisturbed run's differ by rounding.
"$weft" checkpoint diff --json half undisturbed >out 2>&1
grep -o '"largest": *[0-9.e+-]*' out | sed 's/.*: *//' >differences
awk '$1 > 1e-4 { bad = 1 } END { exit bad || NR == 0 }' differences || fail '2 ranks train another model than 4' out
"$weft" checkpoint reshard half resharded --format hf >out 2>&1 || fail 'reshard of slices' out

# A kill at any moment leaves a whole step. The job saves every fifth step in the background.
for moment in 1 2 3 4 5 6; do
    rm -rf killed
    "$weft" launch -n 4 --no-logs -- ./checkpoint_c killed 1000000 sliced >out 2>&1 &
    launcher=$!
    until ls killed/rank_0/step-* >/dev/null 2>&1 || ! kill -0 $launcher 2>/dev/null; do sleep 0.02; done
    sleep 0.0$((moment * 7 % 10))
    victims=$(ps -o pid= --ppid "$launcher" | while read -r child; do ps -o pid=,args= --ppid "$child"; ps -o pid=,args= -p "$child"; done |
        awk '/checkpoint_c/ { print $1 }')
    [ -n "$victims" ] || fail 'no ranks to kill' out
    # shellcheck disable=SC2086
    kill -9 $victims 2>/dev/null
    wait $launcher && fail 'a killed job ends well' out
    launch 2 ./checkpoint_c killed 0 sliced
    step=$(sed -n 's/^begins at step //p' out)
    [ "${step:-0}" -gt 0 ] && [ $((step % 5)) -eq 0 ] || fail "after a kill 2 ranks begin at step '$step'" out
done

# A limit on the size of files acts like a full disk: an error on every rank, and the steps of before.
cat >full.c <<'EOF'
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <weft/weft.h>
int main(void) {
    weft_world *world;
    weft_plan *plan;
    weft_graph *g;
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    (void)signal(SIGXFSZ, SIG_IGN);
    if (weft_world_join(NULL, &world) < 0 || weft_plan_create(weft_world_size(world), &plan) < 0) return 2;
    if (weft_plan_optimizer(plan, 3, 0, 0) < 0 || weft_graph_create(&g) < 0) return 2;
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F32, 8, 256));
    weft_loss(g, weft_mse(g, weft_dense(g, "out", x, 256, NULL), x));
    o.world = world;
    o.plan = plan;
    o.threads = 1;
    const weft_session_save_options sliced = WEFT_STRUCT(weft_session_save_options, .sliced = true);
    if (weft_session_create(g, &o, &s) < 0 || weft_session_save(s, "full", &sliced) < 0) return 2;
    if (weft_world_rank(world) == 2) setrlimit(RLIMIT_FSIZE, &(struct rlimit){8192, RLIM_INFINITY});
    if (weft_session_set_step(s, 1) < 0 || weft_session_save_start(s, "full", &sliced) < 0) return 3;
    const weft_status status = weft_session_save_wait(s);
    char name[32];
    (void)snprintf(name, sizeof name, "told-%d", weft_world_rank(world));
    FILE *told = fopen(name, "w");
    if (!told || fprintf(told, "%d %s\n", status == WEFT_E_IO, weft_error_message()) < 0 || fclose(told)) return 5;
    const int again = weft_session_load(s, "full", -1, NULL) < 0 || weft_session_step_number(s) != 0;
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    weft_world_leave(world);
    return again ? 4 : 0;
}
EOF
${CC:-cc} -O1 -Wall -Wextra -Werror full.c $(pkg-config --cflags --libs weft) -o full_c >log 2>&1 || fail 'full.c does not compile' log
rm -rf full
launch 4 ./full_c
cat told-* >out
[ "$(grep -c '^1 full: .*step 1' out)" = 4 ] || fail 'not an error on every rank' out
[ "$(grep -c 'rank 2: ' out)" = 3 ] || fail 'rank 2 is not named on the others' out
"$weft" checkpoint verify full >out 2>&1 || fail 'the step of before is damaged' out

for flavour in $flavours; do
    mpirun_of() { good "$flavour" "$@"; }
    most=4
    [ "$flavour" = openmpi ] || most=2
    for pair in "1 $most" "$most 1" '2 2'; do
        # shellcheck disable=SC2086
        from_to mpirun_of "$PWD/checkpoint_c" $pair
    done
    rm -rf mine
    mpirun_of "$most" "$PWD/checkpoint_c" mine 7 sliced
    mpirun_of 1 "$PWD/checkpoint_c" mine 7
    grep -q '^begins.* 7$' out || fail "$flavour: 1 rank does not begin with the slices of $most" out
    has_fortran "$flavour" || continue
    fortran "$flavour" checkpoint_f checkpoint.f90 -O2 >log 2>&1 || { fail "$flavour: checkpoint.f90" log; continue; }
    from_to mpirun_of "$PWD/checkpoint_f" 2 "$most"
    from_to mpirun_of "$PWD/checkpoint_f" "$most" 1
    rm -rf mine
    mpirun_of 2 "$PWD/checkpoint_f" mine 7 sliced
    [ -d mine/rank_1 ] || fail "$flavour: Fortran writes no slices" out
    mpirun_of 1 "$PWD/checkpoint_c" mine 7
    grep -q '^begins.* 7$' out || fail "$flavour: C does not begin with the slices of Fortran" out
    echo "$flavour: saved on some ranks, loaded on others"
done
exit $failed
