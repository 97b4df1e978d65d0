from jhima.baselines.dialects import main

main()
