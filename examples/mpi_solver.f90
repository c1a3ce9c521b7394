! A network inside an MPI program, in Fortran 2018: what mpi_solver.c does.
!
!     F=$(pkg-config --variable=fortran weft)      # weft.f90 and the little C that it needs
!     mpicc -c $(pkg-config --cflags weft) $F/weft_fortran.c
!     mpifort $F/weft.f90 mpi_solver.f90 weft_fortran.o $(pkg-config --libs weft) -o mpi_solver
!     mpirun -n 4 ./mpi_solver data                # how to split it: data, zero, tensor, pipeline
program mpi_solver
    use, intrinsic :: iso_fortran_env, only: real32, real64, int64
    use mpi
    use weft
    implicit none
    integer, parameter :: rows = 32, wide = 64, batch = 240, near_points = 9, hidden = 48, steps = 200
    ! Columns are split over ranks; the rims have what the neighbours have, and zero at the ends.
    real(real32) :: u(0:wide + 1, 0:rows + 1, 0:1) = 0, near(near_points, batch), after(batch), start(wide, rows), at(2)
    integer :: rank, size, team, me, members, left, right, step, part, parts, share, now, next, s, i, j, error
    real(real64) :: loss
    character(len=16) :: how = 'data'
    type(weft_world) :: world
    type(weft_graph) :: graph
    type(weft_plan) :: plan
    type(weft_session) :: session
    type(weft_session_options) :: options
    type(weft_value) :: x, y

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, size, error)
    left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
    right = merge(rank + 1, MPI_PROC_NULL, rank + 1 < size)
    ! Pairs of ranks; the odd one is a team by itself.
    call MPI_Comm_split(MPI_COMM_WORLD, merge(1, 0, rank >= size/2*2), rank, team, error)
    call MPI_Comm_rank(team, me, error)
    call MPI_Comm_size(team, members, error)
    if (command_argument_count() > 0 .and. members > 1) call get_command_argument(1, how)
    parts = merge(4, 1, how == 'pipeline')

    call check(weft_world_from_mpi(team, world))
    call check(weft_graph_create(graph))
    x = weft_input(graph, 'near', WEFT_F32, [batch/parts, near_points])
    y = weft_input(graph, 'after', WEFT_F32, [batch/parts, 1])
    x = layer('out', layer('second', layer('first', x, near_points, hidden), hidden, hidden), hidden, 1)
    call weft_loss(graph, weft_mse(graph, x, y))
    call check(weft_plan_create(members, plan))
    if (how == 'zero') call check(weft_plan_optimizer(plan, 3))
    if (how == 'tensor') call check(weft_plan_axis(plan, 'tp', members))
    if (how == 'tensor') call check(weft_op_split(plan, 'first:linear', 'n0=tp'))
    if (how == 'pipeline') call check(weft_plan_pipeline(plan, 2, parts, WEFT_PIPELINE_1F1B, 1))
    options = weft_session_defaults()
    options%threads = 1
    options%clip = 1
    call check(weft_session_create(graph, options, session, plan, world))

    call random_init(.true., .false.)
    do i = 0, rank ! numbers of its own
        call random_number(start)
    end do
    u(1:wide, 1:rows, 0) = 2*start - 1
    share = batch/members
    do step = 0, steps
        now = mod(step, 2)
        next = 1 - now
        call MPI_Sendrecv(u(:, 1, now), wide + 2, MPI_REAL, left, 0, u(:, rows + 1, now), wide + 2, MPI_REAL, right, 0, &
            MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
        call MPI_Sendrecv(u(:, rows, now), wide + 2, MPI_REAL, right, 1, u(:, 0, now), wide + 2, MPI_REAL, left, 1, &
            MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
        associate (c => u(1:wide, 1:rows, now))
            u(1:wide, 1:rows, next) = c + 0.05*(c - c**3) + 0.1*(u(0:wide - 1, 1:rows, now) + &
                u(2:wide + 1, 1:rows, now) + u(1:wide, 0:rows - 1, now) + u(1:wide, 2:rows + 1, now) - 4*c)
        end associate
        do s = me*share + 1, (me + 1)*share ! points of its own; then all get all
            call random_number(at)
            i = 1 + int(at(1)*wide)
            j = 1 + int(at(2)*rows)
            near(:, s) = reshape(u(i - 1:i + 1, j - 1:j + 1, now), [near_points])
            after(s) = u(i, j, next)
        end do
        call MPI_Allgather(MPI_IN_PLACE, 0, MPI_REAL, near, share*near_points, MPI_REAL, team, error)
        call MPI_Allgather(MPI_IN_PLACE, 0, MPI_REAL, after, share, MPI_REAL, team, error)
        do part = 1, parts
            s = (part - 1)*batch/parts
            call check(weft_session_feed(session, 'near', near(:, s + 1:s + batch/parts)))
            call check(weft_session_feed(session, 'after', after(s + 1:s + batch/parts)))
            call check(weft_session_accumulate(session, loss))
        end do
        call check(weft_session_update(session, 3e-3_real64))
        if (mod(step, 50) == 0 .and. rank == 0) print '(a, i4, a, f9.6)', 'step ', step, '  loss ', loss
    end do

    call weft_session_destroy(session)
    call weft_plan_destroy(plan)
    call weft_graph_destroy(graph)
    call weft_world_leave(world)
    call MPI_Comm_free(team, error)
    call MPI_Finalize(error)

contains

    subroutine check(status)
        integer, intent(in) :: status
        if (status >= 0) return
        print '(2a)', 'mpi_solver: ', weft_error_message()
        call MPI_Abort(MPI_COMM_WORLD, 1, error)
    end subroutine

    type(weft_value) function layer(name, x, from, to) result(y)
        character(len=*), intent(in) :: name
        type(weft_value), intent(in) :: x
        integer, intent(in) :: from, to
        type(weft_value) :: weight, bias
        call weft_cell_begin(graph, name)
        weight = weft_param(graph, 'weight', WEFT_F32, [from, to], WEFT_INIT_NORMAL, 0.3_real64)
        bias = weft_param(graph, 'bias', WEFT_F32, [to], WEFT_INIT_ZEROS)
        y = weft_linear(graph, x, weight, bias)
        if (to > 1) y = weft_tanh(graph, y)
        y = weft_cell_end(graph, y)
    end function
end program
