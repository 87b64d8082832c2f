from torchtitan.config import ConfigManager


def main():
    ConfigManager().parse_args().build().train()


if __name__ == "__main__":
    main()
