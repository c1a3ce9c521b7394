! A network inside an MPI program, in Fortran 2018: the counterpart of mpi_solver.c.
!
!     F=$(pkg-config --variable=fortran weft)      # the module and its C files
!     mpicc -c $(pkg-config --cflags weft) $F/weft_fortran*.c
!     mpifort $F/weft.f90 mpi_solver.f90 weft_fortran*.o $(pkg-config --libs weft) -o mpi_solver
!     mpirun -n 4 ./mpi_solver data                # the split: data, zero, tensor, pipeline
program mpi_solver
    use, intrinsic :: iso_fortran_env, only: error_unit, real32, real64
    use mpi
    use weft
    implicit none
    integer, parameter :: points = 60, hidden = 48, steps = 200 ! points of each rank
    real(real32) :: u(0:points + 1, 0:1) = 0
    integer :: rank, size, left, right, team, members, parts, rows, step, now, next, part, first, i, k, error
    real(real64) :: loss
    character(len=16) :: how
    type(weft_world) :: world
    type(weft_plan) :: plan
    type(weft_graph) :: graph
    type(weft_session) :: session
    type(weft_session_options) :: options
    type(weft_value) :: x, line, near(0:2)

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, size, error)
    how = way()
    if (how == '') then
        if (rank == 0) write (error_unit, '(a)') 'usage: mpi_solver [data|zero|tensor|pipeline]'
        call MPI_Finalize(error)
        stop 2, quiet=.true.
    end if
    left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
    right = merge(rank + 1, MPI_PROC_NULL, rank + 1 < size)
    ! A team has an even number of ranks; an odd last rank is a team of one.
    call MPI_Comm_split(MPI_COMM_WORLD, merge(1, 0, rank >= size/2*2), rank, team, error)
    call MPI_Comm_size(team, members, error)
    if (members == 1) how = 'data' ! nothing to split
    parts = merge(4, 1, how == 'pipeline')
    rows = points/parts

    call check(weft_world_from_mpi(team, world))
    call check(weft_plan_create(members, plan)) ! data parallelism, unless more is said
    if (how == 'zero') call check(weft_plan_optimizer(plan, 3))
    if (how == 'tensor') call check(weft_plan_axis(plan, 'tp', members))
    if (how == 'tensor') call check(weft_plan_split_op(plan, 'first:linear', 'n0=tp'))
    if (how == 'pipeline') call check(weft_plan_pipeline(plan, 2, parts, WEFT_PIPELINE_1F1B))

    call check(weft_graph_create(graph)) ! it keeps its first error, which weft_session_create returns
    ! A sample is a piece of the line: a rank's points, or, in a pipeline, a part of them.
    line = weft_input(graph, 'u', WEFT_F32, [members, rows + 2])
    do k = 0, 2 ! all points' left neighbours, the points, their right ones
        near(k) = weft_reshape(graph, weft_slice(graph, line, 1, k, k + rows), [members, rows, 1])
    end do
    x = weft_dense(graph, 'first', weft_concat(graph, near, 2), hidden, weft_tanh)
    x = weft_dense(graph, 'second', x, hidden, weft_tanh)
    x = weft_mse(graph, weft_dense(graph, 'out', x, 1), weft_input(graph, 'after', WEFT_F32, [members, rows, 1]))
    call weft_loss(graph, x)
    options = weft_session_defaults()
    options%threads = 1
    options%clip = 1
    call check(weft_session_create(graph, options, session, plan, world))

    u(1:points, 0) = [(mod((rank*points + i)*37, 100)/50.0 - 1, i=1, points)]
    do step = 0, steps
        now = mod(step, 2)
        next = 1 - now
        call solve(u(:, now), u(:, next))
        do part = 1, parts
            ! Copies this rank's sample from the solver's array to the place that the plan assigns.
            first = (part - 1)*rows
            call check(weft_session_feed_rows(session, 'u', u(first:first + rows + 1, now)))
            call check(weft_session_feed_rows(session, 'after', u(first + 1:first + rows, next)))
            call check(weft_session_accumulate(session, loss))
        end do
        call check(weft_session_update(session, 1e-3_real64))
        if (mod(step, 50) == 0 .and. rank == 0) print '(a, i4, a, f9.6)', 'step ', step, '  loss ', loss
    end do
    call weft_session_destroy(session)
    call weft_graph_destroy(graph)
    call weft_plan_destroy(plan)
    call weft_world_leave(world)
    call MPI_Comm_free(team, error)
    call MPI_Finalize(error)

contains

    subroutine check(status)
        integer, intent(in) :: status
        if (status >= 0) return
        write (error_unit, '(2a)') 'mpi_solver: ', weft_error_message()
        call MPI_Abort(MPI_COMM_WORLD, 1, error)
    end subroutine

    ! The split named by the first argument; blank for an unknown one.
    function way() result(how)
        character(len=16) :: how
        integer :: length
        how = 'data'
        if (command_argument_count() == 0) return
        call get_command_argument(1, how, length)
        if (command_argument_count() == 1 .and. length <= len(how) .and. &
            any(how == [character(len=16) :: 'data', 'zero', 'tensor', 'pipeline'])) return
        how = ''
    end function

    ! The ends are the neighbors' points, and zero at the ends of the line.
    subroutine solve(u, after)
        real(real32), intent(inout) :: u(0:points + 1), after(0:points + 1)
        call MPI_Sendrecv(u(1), 1, MPI_REAL, left, 0, u(points + 1), 1, MPI_REAL, right, 0, MPI_COMM_WORLD, &
            MPI_STATUS_IGNORE, error)
        call MPI_Sendrecv(u(points), 1, MPI_REAL, right, 1, u(0), 1, MPI_REAL, left, 1, MPI_COMM_WORLD, &
            MPI_STATUS_IGNORE, error)
        associate (c => u(1:points))
            after(1:points) = c + 0.1*(u(0:points - 1) - 2*c + u(2:points + 1)) + 0.05*(c - c**3)
        end associate
    end subroutine
end program
